// The MCP servers that a person has added: their tools are offered to the model, and run when the person agrees to a call.

import { by, element, iconButton, onEnter } from './dom.js';
import { lasting } from './keep.js';
import { Mcp } from './mcp.js';

const STORE = 'bench.mcp';

// `{mcp, isOn}` of each, and its row of the list.
let all = [];
let onChange = () => {};

const known = () => lasting.list(STORE).filter(one => typeof one?.url === 'string' && URL.canParse(one.url));

const write = () => lasting.set(STORE, JSON.stringify(all.map(({ mcp, isOn }) => ({ url: mcp.url, token: mcp.token, isOn }))));

/// A name that requests allow, and no two tools share: that of the tool, and after it that of the server where two have it.
function names() {
    const out = new Map();
    for (const { mcp, isOn } of all) for (const tool of isOn ? mcp.tools : []) {
        const plain = tool.name.replace(/[^\w-]/g, '_').slice(0, 60);
        let name = plain;
        for (let n = 2; out.has(name); n++) name = `${plain}_${n}`;
        out.set(name, { mcp, tool });
    }
    return out;
}

/// The tools as those of a request.
export const tools = () => [...names()].map(([name, { tool }]) => ({
    type: 'function', function: { name, description: String(tool.description ?? ''), parameters: tool.inputSchema ?? { type: 'object' } },
}));

/// What runs a tool with arguments as the model wrote them, or null.
export function runner(name) {
    const found = names().get(name);
    return found ? given => found.mcp.call(found.tool.name, given.trim() ? JSON.parse(given) : {}) : null;
}

/// A server in the list. It is made once, so that what has the focus keeps it.
function row(server) {
    const { url, token } = server.mcp;
    const box = element('input', { type: 'checkbox', 'aria-label': `Use ${url}` });
    box.checked = server.isOn;
    box.addEventListener('change', () => {
        server.isOn = box.checked;
        write();
        connect(server);
    });
    const key = element('input', { type: 'password', autocomplete: 'new-password', placeholder: 'Token, if it wants one', 'aria-label': `Token for ${url}` });
    key.value = token;
    key.addEventListener('change', () => {
        server.mcp = new Mcp(url, key.value.trim());
        write();
        connect(server);
    });
    const remove = iconButton('trash', `Remove ${url}`, () => {
        all = all.filter(other => other !== server);
        server.row.remove();
        write();
        onChange();
        by('mcp-url').focus();
    });
    Object.assign(server, { name: element('span'), told: element('small', { role: 'status' }) });
    return element('li', {}, [box, element('div', {}, [server.name, server.told, key]), remove]);
}

function tell(server, state, isFault = false) {
    const { mcp, name, told } = server;
    name.textContent = mcp.name ?? mcp.url;
    name.title = mcp.tools.map(tool => tool.name).join(', ');
    told.textContent = state;
    told.className = isFault ? 'fault' : 'quiet';
    onChange();
}

async function connect(server) {
    const { mcp, isOn } = server;
    tell(server, isOn ? 'Connecting …' : 'off');
    if (!isOn) return;
    const state = await mcp.connect().then(() => `${mcp.tools.length} tool${mcp.tools.length === 1 ? '' : 's'}`, error => error);
    // Meanwhile it may have been turned off, or have got another token.
    if (server.mcp === mcp && server.isOn) tell(server, state.message ?? state, state instanceof Error);
}

function put(url, token, isOn) {
    const server = { mcp: new Mcp(url, token), isOn };
    all.push(server);
    server.row = row(server);
    by('mcp-list').append(server.row);
    connect(server);
}

function add() {
    const field = by('mcp-url'), text = field.value.trim();
    let url = null;
    // Below the path of the page, where a proxy has both, a relative address will do.
    try { url = new URL(text, document.baseURI); } catch { /* no address */ }
    if (!text || !['http:', 'https:'].includes(url?.protocol) || all.some(({ mcp }) => mcp.url === url.href)) return field.focus();
    field.value = '';
    put(url.href, '', true);
    write();
}

/// `changed` is called when other tools are there.
export function listen(changed) {
    onChange = changed;
    for (const { url, token, isOn } of known()) put(url, typeof token === 'string' ? token : '', isOn !== false);
    by('mcp-add').addEventListener('click', add);
    onEnter('mcp-url', add);
}
