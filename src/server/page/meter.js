// How much of the model's context the conversation takes, as the server counted it at the last answer.

import { by } from './dom.js';

const FULL = 0.9;

/// `used` is what the last answer took, or null; `context` how much the model holds, if that is known.
export function tell(used, context) {
    const n = used ? used.prompt + used.answer : 0, share = context ? n / context : 0, box = by('meter');
    box.hidden = !n;
    if (!n) return;
    const count = value => value.toLocaleString('en').replaceAll(',', '\u202f');
    by('meter-text').textContent = context ? `${count(n)} of ${count(context)} tokens` : `${count(n)} tokens`;
    by('meter-bar').hidden = !context;
    by('meter-bar').style.setProperty('--share', Math.min(1, share));
    box.classList.toggle('full', share > FULL);
    box.title = share > FULL ? 'The context is nearly full: begin a new chat, or load the model with a longer context.'
        : 'Tokens of this conversation, and what the context of the model holds';
}
