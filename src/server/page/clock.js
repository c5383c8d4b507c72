// What an answer took: tokens, speed, the time until it began.

export class Clock {
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
        const drafted = usage?.completion_tokens_details?.accepted_prediction_tokens;
        return [
            n ? `${n} token${n === 1 ? '' : 's'}${drafted ? `, ${drafted} from drafts` : ''}` : '',
            this.first && counted > 0 && seconds > 0 ? `${(counted / seconds).toFixed(1)} tokens/s` : '',
            this.first ? `first after ${((this.first - this.start) / 1000).toFixed(2)} s` : '',
            usage ? `prompt ${usage.prompt_tokens}${cached ? `, ${cached} cached` : ''}` : '',
            isStepped ? `${usage.diffusion.passes} passes` : '',
        ];
    }

    /// What of the context is taken, if the server said so.
    used = usage => usage ? { prompt: usage.prompt_tokens, answer: usage.completion_tokens } : null;
}
