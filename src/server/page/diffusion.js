// The denoising steps of a completion by text diffusion: the buffer of mask tokens, and the tokens that each step fixes.

import { element } from './dom.js';
import { percent, visible } from './tokens.js';

const MASK = '▒';

export class Buffer {
    constructor(box) {
        this.box = box;
        this.steps = [];
        this.cells = [];
        this.timer = 0;
    }

    /// Takes a step; the first tells how many positions there are.
    take(step) {
        this.steps.push(step);
        if (!this.cells.length) this.mask(step.masked + step.fixed.length);
        this.apply(step);
    }

    mask(n) {
        this.cells = Array.from({ length: n }, () => element('span', { class: 'cell' }, [MASK]));
        this.caption = element('p', { class: 'quiet' });
        this.box.replaceChildren(element('div', { class: 'cells', 'aria-hidden': 'true' }, this.cells), this.caption);
    }

    apply({ step, masked, fixed }) {
        for (const { position, token, logprob } of fixed) {
            const cell = this.cells[position];
            if (!cell) continue;
            cell.textContent = token.startsWith('<|') ? '·' : visible(token).replaceAll('␣', ' ');
            cell.title = `step ${step + 1}, ${percent(logprob)}`;
            cell.classList.add('fixed');
        }
        this.caption.textContent = `step ${step + 1}, ${masked} masked`;
    }

    /// Shows all steps again.
    replay() {
        clearInterval(this.timer);
        this.box.hidden = false;
        this.mask(this.cells.length);
        const left = [...this.steps], pause = Math.max(30, Math.min(250, 4000 / left.length));
        this.timer = setInterval(() => {
            if (left.length) this.apply(left.shift());
            else clearInterval(this.timer);
        }, pause);
    }
}
