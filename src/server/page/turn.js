// One message of the conversation as it is seen: text, files, reasoning, calls of tools, denoising steps, numbers, buttons.

import { Calls } from './calls.js';
import { Buffer } from './diffusion.js';
import { button, copy, element, fit, icon, iconButton, say } from './dom.js';
import { sent } from './files.js';
import { Prose } from './prose.js';

const WHY = { length: 'at the maximum length', tool_calls: 'to call tools', content_filter: 'by a filter' };

export class Turn {
    /// `actions` are what its buttons do: `edit`, `again`, `go`, `results`, `walk`, `changed`; `load` gives the tokens of a text that is complete.
    constructor(node, actions, load) {
        this.node = node;
        this.actions = actions;
        this.isOwn = node.role === 'user';
        this.place = { at: 0, of: 1, isLast: false };
        this.text = element('div', { class: 'text' });
        this.parts = element('div', { class: 'parts' }, [this.text]);
        this.foot = element('div', { class: 'foot' });
        this.box = element('article', { class: `turn ${node.role}`, 'aria-label': this.isOwn ? 'You' : 'Model', tabindex: -1 }, [this.parts, this.foot]);
        this.box.turn = this;
        this.calls = new Calls(node, this.parts, { ...actions, results: () => actions.results(this) });
        if (this.isOwn) this.text.textContent = node.content;
        else this.prose = new Prose(this.text);
        this.text.hidden = this.isOwn && !node.content;
        this.parts.prepend(...node.files.map(sent));
        if (load) this.restore(load);
    }

    /// Shows what was stored.
    restore(load) {
        const { node } = this;
        if (this.prose && node.content) this.prose.put(node.content, load);
        if (node.reasoning) {
            this.think('');
            this.thoughts.append(node.reasoning);
            this.tellThinking();
        }
        this.calls.restore();
        this.end();
    }

    /// Takes a chunk of the stream.
    take({ choices, diffusion }) {
        if (diffusion) this.step(diffusion);
        const { delta, logprobs } = choices?.[0] ?? {};
        const { content, reasoning_content: reasoning, tool_calls: calls } = delta ?? {};
        if (reasoning) this.think(reasoning);
        if (content) {
            this.endThinking();
            this.prose.add(content, logprobs?.content);
            this.node.content = this.prose.text;
        }
        if (calls) this.endThinking();
        for (const call of calls ?? []) this.calls.take(call);
        this.node.stamp = Date.now();
    }

    think(text) {
        if (!this.thoughts) {
            this.began = performance.now();
            this.summary = element('summary', {}, ['Reasoning …']);
            this.thoughts = element('div', { class: 'thoughts' });
            this.parts.prepend(element('details', { class: 'reasoning' }, [this.summary, this.thoughts]));
        }
        this.node.reasoning += text;
        this.thoughts.append(text);
    }

    endThinking() {
        if (!this.began) return;
        this.node.seconds = (performance.now() - this.began) / 1000;
        this.tellThinking();
    }

    tellThinking() {
        this.began = 0;
        const { seconds } = this.node;
        this.summary.textContent = seconds == null ? 'Reasoning' : `Reasoning, ${seconds.toFixed(1)} s`;
    }

    /// Takes a denoising step.
    step(step) {
        if (!this.buffer) {
            const box = element('div', { class: 'buffer' });
            this.parts.prepend(box);
            this.buffer = new Buffer(box);
        }
        this.text.hidden = true;
        this.buffer.take(step);
    }

    /// Begins with the text of another answer up to a token, and another token in its place.
    from(other, token, entry) {
        const before = other.prose.text.slice(0, token.start);
        this.prose.from(before, other.prose.tokens.filter(({ start }) => start < token.start));
        this.prose.token(entry.token, { ...entry, top_logprobs: token.entry.top_logprobs });
        this.node.content = this.prose.text;
    }

    begin() {
        this.under();
        this.buffer?.box.remove();
        this.buffer = null;
        this.node.fault = '';
        this.box.querySelector('.fault')?.remove();
        this.box.setAttribute('aria-busy', 'true');
    }

    /// The end of an answer: its numbers are in the message.
    end() {
        this.endThinking();
        this.prose?.finish();
        if (this.buffer) {
            this.text.hidden = false;
            this.buffer.box.hidden = true;
        }
        this.box.removeAttribute('aria-busy');
        this.calls.end();
        if (this.node.fault) this.fail(this.node.fault);
        this.buttons();
    }

    fail(message) {
        this.parts.querySelector('.fault')?.remove();
        this.parts.append(element('p', { class: 'fault', role: 'alert' }, [icon('warning'), element('span', {}, [message])]));
    }

    /// Shows numbers while the answer is under way.
    progress = text => { this.foot.textContent = text; };

    /// Says which of several versions this is, and whether it is the last message, which has buttons of its own.
    put(place) {
        if (Object.keys(place).every(key => place[key] === this.place[key])) return;
        this.place = place;
        if (!this.area && !this.box.hasAttribute('aria-busy')) this.buttons();
    }

    versions() {
        const { at, of } = this.place;
        if (of < 2) return null;
        const step = (name, text, by) => {
            const out = iconButton(name, text, () => this.actions.walk(this, by));
            out.disabled = at + by < 0 || at + by >= of;
            return out;
        };
        const told = element('span', {}, [`${at + 1} / ${of}`]);
        return element('div', { class: 'versions', role: 'group', 'aria-label': `Version ${at + 1} of ${of}` },
            [step('left', 'Previous version', -1), told, step('right', 'Next version', 1)]);
    }

    get numbers() {
        const { numbers, reason, model } = this.node;
        // The page was left in its middle, or another tab shows it now.
        const why = reason === '' ? 'not complete' : WHY[reason] ? `ended ${WHY[reason]}` : reason === 'stop' ? '' : reason;
        const text = [numbers, why].filter(Boolean).join(' · ');
        return text ? element('p', { class: 'numbers', title: model || null }, [text]) : null;
    }

    buttons() {
        const { node, actions } = this;
        const all = [iconButton('copy', 'Copy', ({ currentTarget }) => copy(node.content, currentTarget)), iconButton('edit', 'Edit', () => this.edit())];
        if (!this.isOwn || this.place.isLast) all.push(iconButton('again', 'Regenerate', () => actions.again(this)));
        if (!this.isOwn && this.place.isLast && node.content && node.reason !== 'stop') all.push(iconButton('go', 'Continue', () => actions.go(this)));
        if (this.buffer) all.push(iconButton('play', 'Replay', () => this.buffer.replay()));
        const row = element('div', { class: 'buttons' }, all);
        this.under(...[this.versions(), row, this.isOwn ? null : this.numbers].filter(Boolean));
    }

    /// Puts something below the message. The focus goes to the button that is in the place of the one that had it, else to the message.
    under(...all) {
        const had = this.foot.contains(document.activeElement) ? document.activeElement.title : null;
        this.foot.replaceChildren(...all);
        if (had !== null) ([...this.foot.querySelectorAll('button')].find(({ title }) => title === had) ?? this.box).focus({ preventScroll: true });
    }

    /// Makes the text a field until it is saved or left.
    edit() {
        if (this.area) return this.area.focus();
        const area = this.area = element('textarea', { class: 'edit', 'aria-label': 'Text of the message' });
        area.value = this.node.content;
        const leave = () => {
            bar.remove();
            area.remove();
            this.area = null;
            this.box.classList.remove('editing');
            this.text.hidden = this.isOwn && !this.node.content;
            this.buttons();
            this.foot.querySelector('[title=Edit]').focus({ preventScroll: true });
        };
        const save = () => { leave(); this.actions.edit(this, area.value); };
        const saving = button(this.isOwn ? 'Save and send' : 'Save', 'Ctrl+Enter; the text before stays as another version', save);
        saving.className = 'main';
        const bar = element('div', { class: 'buttons' }, [saving, button('Cancel', 'Escape', leave)]);
        area.addEventListener('input', () => fit(area));
        area.addEventListener('keydown', event => {
            if (event.key === 'Escape') leave();
            else if (event.key === 'Enter' && (event.ctrlKey || event.metaKey)) save();
            else return;
            event.preventDefault();
            event.stopPropagation();
        });
        this.text.hidden = true;
        this.text.after(area, bar);
        this.box.classList.add('editing');
        this.foot.replaceChildren();
        fit(area);
        area.focus();
        say('Editing');
    }
}
