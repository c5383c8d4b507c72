// The MCP servers that a person has added: their tools are offered to the model, and run when the person agrees to a call.

import { by, element, iconButton, onEnter } from './dom.js';
import { lasting } from './keep.js';
import { Mcp } from './mcp.js';

const STORE = 'bench.mcp';

// `{mcp, isOn, state}` of each.
let all = [];
let onChange = () => {};

const known = () => lasting.list(STORE).filter(one => typeof one?.url === 'string');

const write = () => lasting.set(STORE, JSON.stringify(all.map(({ mcp, isOn }) => ({ url: mcp.url, isOn }))));

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

function row(server) {
    const { mcp, isOn, state } = server;
    const box = element('input', { type: 'checkbox', 'aria-label': `Use ${mcp.url}` });
    box.checked = isOn;
    box.addEventListener('change', () => {
        server.isOn = box.checked;
        write();
        connect(server);
    });
    const remove = iconButton('trash', `Remove ${mcp.url}`, () => {
        all = all.filter(other => other !== server);
        write();
        tell();
    });
    const told = element('small', { class: server.isFault ? 'fault' : 'quiet' }, [state]), title = mcp.tools.map(({ name }) => name).join(', ');
    return element('li', {}, [box, element('div', { title }, [mcp.name ?? mcp.url, element('br'), told]), remove]);
}

function tell() {
    by('mcp-list').replaceChildren(...all.map(row));
    onChange();
}

async function connect(server) {
    const { mcp, isOn } = server;
    server.state = isOn ? 'Connecting …' : 'off';
    server.isFault = false;
    tell();
    if (!isOn) return;
    try {
        await mcp.connect();
        server.state = `${mcp.tools.length} tool${mcp.tools.length === 1 ? '' : 's'}`;
    } catch (error) {
        server.state = error.message;
        server.isFault = true;
    }
    tell();
}

function add() {
    const field = by('mcp-url'), text = field.value.trim();
    let url = null;
    // Below the path of the page, where a proxy has both, a relative address will do.
    try { url = new URL(text, document.baseURI); } catch { /* no address */ }
    if (!text || !['http:', 'https:'].includes(url?.protocol) || all.some(({ mcp }) => mcp.url === url.href)) return field.focus();
    field.value = '';
    all.push({ mcp: new Mcp(url.href), isOn: true, state: '' });
    write();
    connect(all.at(-1));
}

/// `changed` is called when other tools are there.
export function listen(changed) {
    onChange = changed;
    all = known().map(({ url, isOn }) => ({ mcp: new Mcp(url), isOn: isOn !== false, state: '' }));
    for (const server of all) connect(server);
    by('mcp-add').addEventListener('click', add);
    onEnter('mcp-url', add);
}
