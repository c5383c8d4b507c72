// The open conversation: what is sent, what comes back, and what is done to its messages.

import { Refusal, stream } from './api.js';
import { Clock } from './clock.js';
import { by, fit, following, say, toEnd, words } from './dom.js';
import * as files from './files.js';
import * as library from './library.js';
import * as meter from './meter.js';
import * as model from './model.js';
import { runner } from './servers.js';
import * as settings from './settings.js';
import * as store from './store.js';
import { hide, pack, unpack } from './tokens.js';
import { add, choose, line, message, messages, path, siblings } from './tree.js';
import { Turn } from './turn.js';

// How often an answer that is under way is stored.
const SAVE_MS = 2000;
// Time between two drawings of an answer, at least this, and this many times what the last one took.
/// What a person can do about a conversation that does not fit into the context.
const LONG = '. Edit a message to make it shorter, or start a new chat.';
const DRAW_MS = 40, DRAW_SHARE = 4;

let turns = [];
// Answers under way by the id of their conversation; they go on while another conversation is open.
const runs = new Map();
let onNoKey = () => {};
let typing = 0;

const running = () => runs.get(library.open().id);

const actions = {
    edit(turn, text) {
        stop();
        const { role, files, parent, model, reasoning, seconds } = turn.node;
        const own = role === 'user' ? { content: text, files } : { content: text, model, reasoning, seconds, reason: 'edited' };
        put(message(role, own), parent);
        if (role === 'user') answer();
    },
    again(turn) {
        stop();
        answer(turn.isOwn ? turn.node.id : turn.node.parent);
    },
    go: turn => goOn(turn),
    results(turn) {
        stop();
        answer(turn.node.id);
    },
    walk(turn, step) {
        const own = library.open(), all = siblings(own, turn.node), next = all[all.indexOf(turn.node) + step];
        if (!next) return;
        choose(own, next);
        library.saveSoon(own);
        rebuild();
        const buttons = [...turns.find(({ node }) => node === next).box.querySelectorAll('.versions button')];
        // At the end of the row the other button has the focus.
        (step < 0 ? buttons : buttons.reverse()).find(button => !button.disabled)?.focus();
        say(`Version ${all.indexOf(next) + 1} of ${all.length}`);
    },
    changed: () => library.saveSoon(library.open()),
    runner,
};

/// Puts a message into the open conversation, after the one with an id or at the beginning.
function put(node, parent) {
    const own = library.open();
    add(own, own.nodes.get(parent), node);
    library.save(own);
    rebuild();
    return node;
}

const leaf = () => turns.at(-1)?.node.id ?? null;

function view(own, node) {
    const run = runs.get(own.id);
    if (run?.turn.node === node) return run.turn;
    return new Turn(node, actions, async () => unpack(await store.tokens(own.id, node.id).catch(() => []), node.content));
}

/// Shows the path of the open conversation. Messages that stay where they are stay as they are.
function rebuild() {
    const own = library.open(), seen = line(own), nodes = seen.map(({ node }) => node), box = by('turns');
    let same = 0;
    while (same < nodes.length && turns[same]?.node === nodes[same]) same++;
    turns = nodes.map((node, i) => i < same ? turns[i] : view(own, node));
    while (box.children.length > same) box.lastElementChild.remove();
    box.append(...turns.slice(same).map(turn => turn.box));
    for (const [i, turn] of turns.entries()) {
        const { all } = seen[i];
        turn.put({ at: all.indexOf(turn.node), of: all.length, isLast: i === turns.length - 1 });
        turn.seen ??= sight(turn.node);
    }
    by('empty').hidden = turns.length > 0;
    // The message that had the focus is gone.
    if (document.activeElement === document.body) turns.at(-1)?.box.focus({ preventScroll: true });
    measure();
}

/// Shows how much of the context is taken.
const measure = () => meter.tell(turns.findLast(({ node }) => node.used)?.node.used ?? null, model.context());

/// Shows a conversation that was opened.
export function show(own) {
    hide();
    turns = [];
    by('turns').replaceChildren();
    settings.show(own.settings);
    model.choose(own.settings.model);
    rebuild();
    const { text, files: chosen } = library.draft();
    by('input').value = text;
    files.set(chosen);
    fit(by('input'));
    busy();
    toEnd();
}

/// Shows what another tab has added.
export function joined() {
    const run = running();
    // What has changed is shown anew, but not what is being written or edited here.
    const first = turns.findIndex(turn => turn !== run?.turn && !turn.area && turn.seen !== sight(turn.node));
    if (first >= 0) turns.splice(first);
    following(rebuild);
    const { model: id, ...values } = library.open().settings;
    if (JSON.stringify(values) !== JSON.stringify(settings.values())) settings.show(values);
    if (id !== model.selected()) model.choose(id);
}

const sight = ({ content, reasoning, reason, calls }) => `${content.length} ${reasoning.length} ${reason} ${calls.length}`;

/// The messages of the conversation.
export const conversation = () => asked(path(library.open()));

function asked(nodes) {
    const system = settings.system();
    return [...system ? [{ role: 'system', content: system }] : [], ...nodes.flatMap(messages)];
}

function request(nodes, isContinued) {
    const own = { model: model.selected(), messages: asked(nodes), stream: true, stream_options: { include_usage: true } };
    if (isContinued) own.continue_final_message = true;
    if (model.isDiffusion()) own.diffusion_trace = true;
    return { ...own, ...settings.fields() };
}

/// The request for what follows a path, or null with a sentence in the conversation that says why there is none.
function checked(nodes, isContinued) {
    try {
        return request(nodes, isContinued);
    } catch (error) {
        // It is not one of the messages, and goes when something else is done.
        const turn = new Turn(message('assistant', { fault: error.message, reason: 'not sent' }), actions);
        turn.fail(error.message);
        by('turns').append(turn.box);
        by('empty').hidden = true;
        toEnd();
        return null;
    }
}

/// Lets the model answer the message with an id: the last one, or another, which makes a branch.
function answer(parent = leaf()) {
    const all = turns.map(({ node }) => node), nodes = all.slice(0, all.findIndex(({ id }) => id === parent) + 1);
    const body = checked(nodes, false);
    if (!body) return;
    const own = library.open(), node = add(own, own.nodes.get(parent), message('assistant', { model: model.selected() }));
    const turn = new Turn(node, actions);
    start(own, turn, body);
    rebuild();
    toEnd();
}

/// Lets the model go on with an answer.
async function goOn(turn) {
    await turn.prose.resume();
    if (running() || turns.at(-1) !== turn) return;
    const body = checked(turns.map(({ node }) => node), true);
    if (body) start(library.open(), turn, body);
}

function start(own, turn, body) {
    const run = { turn, abort: new AbortController() };
    runs.set(own.id, run);
    library.run(own, true);
    run.ended = follow(own, run, body);
    busy();
}

async function follow(own, run, body) {
    const { turn, abort } = run, { node } = turn, clock = new Clock();
    let usage = null, reason = '', waiting = [], timer = 0, took = 0;
    hide();
    // Drawn together: laying out a long answer for each of its tokens would be slower than most models.
    const draw = () => {
        took = following(() => {
            timer = 0;
            waiting.splice(0).forEach(chunk => turn.take(chunk));
            turn.progress(clock.numbers(null).slice(0, 2).filter(Boolean).join(' · '));
        });
    };
    turn.begin();
    turn.progress('Waiting …');
    try {
        await stream('v1/chat/completions', body, abort.signal, chunk => {
            usage = chunk.usage ?? usage;
            reason = chunk.choices?.[0]?.finish_reason ?? reason;
            clock.tick(chunk);
            waiting.push(chunk);
            timer ||= setTimeout(draw, Math.max(DRAW_MS, DRAW_SHARE * took));
            library.saveSoon(own, SAVE_MS);
        }, comment => turn.progress(model.heard(comment)));
    } catch (error) {
        reason = abort.signal.aborted ? 'stopped' : 'failed';
        if (reason === 'failed') node.fault = words(error) + (error.code === 'context_length_exceeded' ? LONG : '');
        if (error instanceof Refusal && error.status === 401) onNoKey();
    }
    clearTimeout(timer);
    draw();
    end(own, run, { reason: reason || 'failed', numbers: clock.numbers(usage).filter(Boolean).join(' · '), used: clock.used(usage) });
    say(node.fault || (reason === 'stopped' ? 'Stopped' : `Answer complete, ${clock.n} tokens`));
    model.refresh();
}

function end(own, run, told) {
    const { turn } = run, { node } = turn;
    Object.assign(node, told, { stamp: Date.now() });
    if (runs.get(own.id) === run) runs.delete(own.id);
    own.changed = Date.now();
    following(() => turn.end());
    turn.seen = sight(node);
    if (turn.prose.tokens.some(({ entry }) => entry)) store.putTokens(own.id, node.id, pack(turn.prose.tokens)).catch(() => {});
    // Who has deleted the conversation meanwhile does not want it back.
    if (own === library.open() || library.heads.has(own.id)) library.save(own);
    library.run(own, runs.has(own.id));
    busy();
    if (own === library.open()) measure();
}

/// Shows whether the open conversation is being answered.
function busy() {
    const isBusy = running() !== undefined, had = document.activeElement;
    by('send').hidden = isBusy;
    by('stop').hidden = !isBusy;
    if (had === by('send') || had === by('stop')) by('input').focus();
}

/// Ends the answer under way, here or in another conversation.
export function stop(id = library.open().id) {
    const run = runs.get(id);
    run?.abort.abort();
    runs.delete(id);
    busy();
    return run?.ended;
}

function send() {
    const text = by('input').value, chosen = files.files();
    if ((!text.trim() && !chosen.length) || running()) return;
    const node = message('user', { content: text, files: chosen });
    // A message that cannot be sent stays in its field.
    rebuild();
    if (!checked([...turns.map(turn => turn.node), node], false)) return;
    by('input').value = '';
    files.set([]);
    library.keepDraft('', []);
    fit(by('input'));
    // A conversation keeps the model that it began with.
    library.open().settings.model ||= model.selected();
    put(node, leaf());
    answer();
}

/// Goes on from an alternative to a token, in a version of its own.
export async function branch(span, entry) {
    const { turn } = span.closest('.turn'), { token } = span, own = library.open();
    await stop();
    if (own !== library.open()) return;
    const at = turns.indexOf(turn), { parent, reasoning, seconds } = turn.node;
    const node = message('assistant', { model: model.selected(), reasoning, seconds }), next = new Turn(node, actions, async () => []);
    next.from(turn, token, entry);
    const body = checked([...turns.slice(0, at).map(({ node }) => node), node], true);
    if (!body) return;
    add(own, own.nodes.get(parent), node);
    start(own, next, body);
    rebuild();
    by('input').focus();
}

/// Other tools are there: the calls that wait may be run now.
export function offer() {
    const last = turns.at(-1);
    if (last && last !== running()?.turn) last.calls.offer();
}

function keepDraft() {
    clearTimeout(typing);
    typing = 0;
    library.keepDraft(by('input').value, files.files());
}

/// Keeps what was typed just now for when this conversation is opened again.
export const leave = () => { if (typing) keepDraft(); };

/// `needKey` is called when the server wants a key, `refuse` with the reason why a file is not taken.
export function listen(needKey, refuse) {
    onNoKey = needKey;
    const input = by('input');
    by('composer').addEventListener('submit', event => { event.preventDefault(); send(); });
    input.addEventListener('input', () => {
        fit(input);
        typing ||= setTimeout(keepDraft, 300);
    });
    addEventListener('pagehide', leave);
    input.addEventListener('keydown', event => {
        if (event.key === 'ArrowUp' && !input.value && !running()) turns.findLast(({ isOwn }) => isOwn)?.edit();
        else if (event.key === 'Enter' && !event.shiftKey && !event.isComposing) send();
        else return;
        event.preventDefault();
    });
    files.listen(keepDraft, refuse);
    by('stop').addEventListener('click', () => stop());
    by('new').addEventListener('click', () => {
        if (library.open().nodes.size) library.begin();
        input.focus();
    });
    document.addEventListener('keydown', event => {
        if (event.key !== 'Escape' || event.defaultPrevented || document.querySelector('dialog[open]')) return;
        if (!by('tip').hidden) hide();
        else if (running()) stop();
    });
}
