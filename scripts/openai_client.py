"""Checks a server with the official `openai` package: whole and streamed answers, log-probabilities, errors.

Usage: openai_client.py http://127.0.0.1:11116/v1
"""

import sys

import openai

client = openai.OpenAI(base_url=sys.argv[1], api_key="unused", max_retries=0)
model = client.models.list().data[0].id
messages = [{"role": "user", "content": "2+2=?"}]

answer = client.chat.completions.create(
    model=model, messages=messages, temperature=0, logprobs=True, top_logprobs=5
)
text = answer.choices[0].message.content
assert "4" in text, text
entries = answer.choices[0].logprobs.content
assert b"".join(bytes(e.bytes) for e in entries) == text.encode(), entries
assert all(e.logprob <= 0 and len(e.top_logprobs) == 5 for e in entries), entries
assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens

streamed, tokens, usage = "", [], None
for chunk in client.chat.completions.create(
    model=model,
    messages=messages,
    temperature=0,
    logprobs=True,
    stream=True,
    stream_options={"include_usage": True},
):
    usage = chunk.usage or usage
    for choice in chunk.choices:
        streamed += choice.delta.content or ""
        tokens += choice.logprobs.content if choice.logprobs else []
assert streamed == text, (streamed, text)
assert len(tokens) == len(entries)
assert all(abs(t.logprob - e.logprob) < 1e-3 for t, e in zip(tokens, entries))
assert usage.total_tokens == answer.usage.total_tokens, (usage, answer.usage)
# The prompt was read before, but for its last token.
assert usage.prompt_tokens_details.cached_tokens == usage.prompt_tokens - 1, usage

for wrong, expected in [
    (dict(model="nobody", messages=messages), openai.NotFoundError),
    (dict(model=model, messages=messages, temperature=9), openai.BadRequestError),
    (dict(model=model, messages=[]), openai.BadRequestError),
]:
    try:
        client.chat.completions.create(**wrong)
    except expected as error:
        assert error.body["code"] and error.body["message"], error.body
    else:
        raise AssertionError(f"{wrong} was not refused")

print(f"openai client: content (package {openai.__version__}, answer {text!r})")
