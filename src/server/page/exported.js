// Conversations as files: JSON that the page reads again with every branch, and Markdown of the path that is seen, for people.

import { path, title, withFiles } from './tree.js';

export const FORMAT = 'inference-lab-bench/conversations';

const FIELDS = ['id', 'parent', 'next', 'role', 'at', 'content', 'reasoning', 'seconds', 'calls', 'files', 'model', 'numbers', 'reason', 'fault', 'used'];

function plain(node) {
    const isSaid = value => value != null && value !== '' && !(Array.isArray(value) && !value.length);
    const fields = FIELDS.filter(field => field === 'content' || isSaid(node[field]));
    return Object.fromEntries(fields.map(field => [field, node[field]]));
}

export function toJson(all) {
    const conversations = all.map(({ id, title, isNamed, created, changed, first, settings, nodes }) =>
        ({ id, title, named: isNamed, created, changed, first, settings, messages: [...nodes.values()].map(plain) }));
    return JSON.stringify({ format: FORMAT, version: 1, exported: new Date().toISOString(), conversations }, null, 1);
}

const quoted = text => text.split('\n').map(line => `> ${line}`.trimEnd()).join('\n');
const coded = text => `\`\`\`json\n${text}\n\`\`\``;

export function toMarkdown(own) {
    const parts = [`# ${title(own)}`];
    if (own.settings.system) parts.push('## System', own.settings.system);
    for (const node of path(own)) {
        parts.push(node.role === 'user' ? '## You' : `## ${node.model || 'Model'}`);
        if (node.reasoning) parts.push(quoted(`Reasoning:\n${node.reasoning.trim()}`));
        for (const { name, url } of node.files.filter(({ url }) => url)) parts.push(`![${name.replace(/[[\]\\\n]/g, ' ')}](${url})`);
        const text = node.role === 'user' ? withFiles(node) : node.content.trim();
        if (text) parts.push(text);
        for (const call of node.calls) parts.push(`Call of \`${call.name}\`:`, coded(call.arguments), 'Result:', `\`\`\`\n${call.result}\n\`\`\``);
        if (node.fault) parts.push(`*${node.fault}*`);
    }
    return `${parts.join('\n\n')}\n`;
}

/// A name of a file that every system takes.
export function fileName(own, ending) {
    const name = title(own).normalize('NFKD').replace(/[^\p{L}\p{N}]+/gu, '-').replace(/^-+|-+$/g, '').slice(0, 50).toLowerCase();
    return `${name || 'chat'}.${ending}`;
}
