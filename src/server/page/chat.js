// The conversation: what is sent, what comes back, and what is done to its messages.

import { Refusal, stream } from './api.js';
import { by, fit, say } from './dom.js';
import * as model from './model.js';
import * as settings from './settings.js';
import { hide } from './tokens.js';
import { Turn } from './turn.js';

let turns = [];
let running = null;
// Settled when the answer under way is complete.
let ended = Promise.resolve();
let onNoKey = () => {};

const actions = {
    edit(turn, text) {
        turn.content = text;
        if (turn.role !== 'user') return;
        after(turn);
        answer();
    },
    again(turn) {
        before(turn);
        answer();
    },
    results(turn) {
        after(turn);
        answer();
    },
};

/// Takes messages out of the conversation, from a place on.
function cut(at) {
    stop();
    turns.splice(at).forEach(turn => turn.box.remove());
    by('empty').hidden = turns.length > 0;
}

const before = turn => cut(turns.indexOf(turn));
const after = turn => cut(turns.indexOf(turn) + 1);

function put(turn) {
    turns.push(turn);
    by('empty').hidden = true;
    by('log').append(turn.box);
    by('log').scrollTop = by('log').scrollHeight;
    return turn;
}

/// Does something that adds to the conversation, and stays at its end if that is what is seen.
function following(add) {
    const log = by('log'), isAtEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 60;
    add();
    if (isAtEnd) log.scrollTop = log.scrollHeight;
}

/// The messages of the conversation.
export function conversation() {
    const system = settings.system();
    const messages = system ? [{ role: 'system', content: system }] : [];
    return [...messages, ...turns.flatMap(turn => turn.messages())];
}

function request(isContinued) {
    const own = { model: model.selected(), messages: conversation(), stream: true, stream_options: { include_usage: true } };
    if (isContinued) own.continue_final_message = true;
    if (model.isDiffusion()) own.diffusion_trace = true;
    return { ...own, ...settings.fields() };
}

/// What an answer took.
class Clock {
    constructor() {
        this.start = performance.now();
        this.first = 0;
        this.n = 0;
    }

    tick({ choices, diffusion }) {
        const { delta, logprobs } = choices?.[0] ?? {};
        const isText = delta?.content || delta?.reasoning_content || delta?.tool_calls;
        if (isText || diffusion) this.first ||= performance.now();
        if (isText) this.n += logprobs?.content?.length ?? 1;
    }

    numbers(usage) {
        const n = usage?.completion_tokens ?? this.n, now = performance.now();
        const isStepped = usage?.diffusion != null;
        const seconds = (now - (isStepped ? this.start : this.first)) / 1000, counted = isStepped ? n : n - 1;
        const cached = usage?.prompt_tokens_details?.cached_tokens;
        return [
            n ? `${n} token${n === 1 ? '' : 's'}` : '',
            this.first && counted > 0 && seconds > 0 ? `${(counted / seconds).toFixed(1)} tokens/s` : '',
            this.first ? `first after ${((this.first - this.start) / 1000).toFixed(2)} s` : '',
            usage ? `prompt ${usage.prompt_tokens}${cached ? `, ${cached} cached` : ''}` : '',
            isStepped ? `${usage.diffusion.passes} passes` : '',
        ];
    }
}

/// Lets the model answer, or go on with its last message.
function answer(isContinued = false) {
    ended = run(isContinued);
}

async function run(isContinued) {
    hide();
    let body;
    try {
        body = request(isContinued);
    } catch (error) {
        return refuse(error.message);
    }
    const turn = isContinued ? turns.at(-1) : put(new Turn('assistant', actions));
    const own = running = new AbortController(), clock = new Clock();
    let usage = null, reason = '', waiting = [], timer = 0;
    // Drawn together: laying out a long answer for each of its tokens would be slower than most models.
    const draw = () => following(() => {
        timer = 0;
        waiting.splice(0).forEach(chunk => turn.take(chunk));
        turn.progress(clock.numbers(null).slice(0, 2).filter(Boolean).join(' · '));
    });
    busy(true);
    turn.begin();
    turn.progress('Waiting …');
    try {
        await stream('/v1/chat/completions', body, own.signal, chunk => {
            usage = chunk.usage ?? usage;
            reason = chunk.choices?.[0]?.finish_reason ?? reason;
            clock.tick(chunk);
            waiting.push(chunk);
            timer ||= setTimeout(draw, 40);
        }, comment => turn.progress(model.heard(comment)));
    } catch (error) {
        reason = own.signal.aborted ? 'stopped' : 'failed';
        if (!own.signal.aborted) fault(turn, error);
    }
    clearTimeout(timer);
    draw();
    following(() => turn.end(clock.numbers(usage), reason));
    say(reason === 'stopped' ? 'Stopped' : `Answer complete, ${clock.n} tokens`);
    if (running === own) busy(false);
    model.refresh();
}

function fault(turn, error) {
    turn.fail(error instanceof TypeError ? 'The server cannot be reached.' : error.message);
    if (error instanceof Refusal && error.status === 401) onNoKey();
}

/// Says why nothing is sent.
function refuse(message) {
    const turn = put(new Turn('assistant', actions));
    turn.fail(message);
    turn.end([], 'not sent');
}

function busy(isBusy) {
    if (!isBusy) running = null;
    const had = document.activeElement;
    by('send').hidden = isBusy;
    by('stop').hidden = !isBusy;
    if (had === by('send') || had === by('stop')) by('input').focus();
}

export function stop() {
    running?.abort();
    busy(false);
}

function send() {
    const text = by('input').value;
    if (!text.trim() || running) return;
    const turn = put(new Turn('user', actions));
    turn.content = text;
    turn.buttons();
    by('input').value = '';
    fit(by('input'));
    answer();
}

/// Goes on from an alternative to a token.
export async function branch(span, entry) {
    const { turn } = span.closest('.turn');
    after(turn);
    await ended;
    turn.branch(span, entry);
    answer(true);
    by('input').focus();
}

/// `needKey` is called when the server wants a key.
export function listen(needKey) {
    onNoKey = needKey;
    const input = by('input');
    by('composer').addEventListener('submit', event => { event.preventDefault(); send(); });
    input.addEventListener('input', () => fit(input));
    input.addEventListener('keydown', event => {
        if (event.key !== 'Enter' || event.shiftKey || event.isComposing) return;
        event.preventDefault();
        send();
    });
    by('stop').addEventListener('click', stop);
    by('new').addEventListener('click', () => { cut(0); input.focus(); });
    document.addEventListener('keydown', event => {
        if (event.key !== 'Escape' || event.defaultPrevented || document.querySelector('dialog[open]')) return;
        if (!by('tip').hidden) hide();
        else if (running) stop();
    });
}
