// Small values that the browser keeps: settings, drafts, choices, the key of this tab. Where it refuses, they last as long as the page.

class Kept {
    constructor(find) {
        this.own = new Map();
        // A browser may refuse even to name its store.
        try { this.store = find(); } catch { this.store = null; }
    }

    get(name) {
        if (this.own.has(name)) return this.own.get(name);
        try { return this.store?.getItem(name) ?? null; } catch { return null; }
    }

    /// Whether it is kept, not only until the page is left.
    set(name, text) {
        this.own.delete(name);
        try {
            if (this.store) {
                this.store.setItem(name, text);
                return true;
            }
        } catch { /* full, or refused */ }
        this.own.set(name, text);
        return false;
    }

    remove(name) {
        this.own.delete(name);
        try { this.store?.removeItem(name); } catch { /* refused */ }
    }

    names() {
        try { return [...Object.keys(this.store ?? {}), ...this.own.keys()]; } catch { return [...this.own.keys()]; }
    }

    /// A list that was kept as JSON. What the store has may have been changed by anybody.
    list(name) {
        const kept = this.json(name);
        return Array.isArray(kept) ? kept : [];
    }

    /// What a text stands for as JSON; what is not JSON is as if nothing were kept.
    json(name) {
        try { return JSON.parse(this.get(name)); } catch { return null; }
    }
}

export const lasting = new Kept(() => localStorage);
export const ofTab = new Kept(() => sessionStorage);
