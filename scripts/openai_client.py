"""Checks a server with the official `openai` package: whole and streamed answers, log-probabilities, tools,
structured output, responses with state, files and batches, completions, errors.

Usage: openai_client.py http://127.0.0.1:11116/v1
"""

import json
import sys
import time

import openai
import pydantic

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



class Days(pydantic.BaseModel, extra="forbid"):
    days: int = pydantic.Field(ge=1, le=9)


parsed = client.chat.completions.parse(model=model, messages=messages, response_format=Days)
assert 1 <= parsed.choices[0].message.parsed.days <= 9, parsed

tool = openai.pydantic_function_tool(Days, name="get_weather")
choice = {"type": "function", "function": {"name": "get_weather"}}
called = dict(model=model, messages=messages, temperature=0, tools=[tool], tool_choice=choice)
call = client.chat.completions.create(**called).choices[0].message.tool_calls[0]
assert call.function.name == "get_weather", call
Days.model_validate_json(call.function.arguments)
with client.chat.completions.stream(**called) as stream:
    streamed_call = stream.get_final_completion().choices[0].message.tool_calls[0]
assert streamed_call.function.arguments == call.function.arguments, streamed_call
result = {"role": "tool", "tool_call_id": call.id, "content": "rain"}
assistant = {"role": "assistant", "content": None, "tool_calls": [call.model_dump()]}
again = client.chat.completions.create(model=model, messages=[*messages, assistant, result])
assert again.choices[0].finish_reason in ("stop", "length"), again

response = client.responses.create(model=model, input="2+2=?", temperature=0)
assert response.output_text == text and response.status == "completed", response
with client.responses.stream(model=model, input="2+2=?", temperature=0) as stream:
    deltas = [event.delta for event in stream if event.type == "response.output_text.delta"]
    assert "".join(deltas) == text and stream.get_final_response().output_text == text
assert 1 <= client.responses.parse(model=model, input="2+2=?", text_format=Days).output_parsed.days <= 9
flat = {"type": "function", "name": "get_weather", "parameters": Days.model_json_schema()}
called = dict(model=model, temperature=0, tools=[flat], tool_choice={"type": "function", "name": "get_weather"})
item = client.responses.create(input="2+2=?", **called).output[-1]
Days.model_validate_json(item.arguments)
outcome = {"type": "function_call_output", "call_id": item.call_id, "output": "rain"}
items = [{"role": "user", "content": "2+2=?"}, item.model_dump(exclude_none=True), outcome]
assert client.responses.create(model=model, input=items, max_output_tokens=20).output

# Responses that the server stores.
second = client.responses.create(model=model, input="3+3=?", temperature=0, previous_response_id=response.id)
assert second.previous_response_id == response.id and second.output_text, second
assert client.responses.retrieve(second.id).output_text == second.output_text
listed = list(client.responses.input_items.list(second.id, order="asc", limit=2))
assert [item.role for item in listed] == ["user", "assistant", "user"], listed
assert listed[1].content[0].text == text, listed
background = client.responses.create(model=model, input="2+2=?", temperature=0, background=True)
while background.status in ("queued", "in_progress"):
    time.sleep(0.1)
    background = client.responses.retrieve(background.id)
assert background.status == "completed" and background.output_text == text, background
events = list(client.responses.create(model=model, input="2+2=?", temperature=0, background=True, stream=True))
identity = events[-1].response.id
rest = list(client.responses.retrieve(identity, stream=True, starting_after=events[2].sequence_number))
assert [event.sequence_number for event in rest] == [event.sequence_number for event in events[3:]], rest
long = client.responses.create(
    model=model, input="1 2 3 4", background=True, max_output_tokens=20000, extra_body={"ignore_eos": True}
)
assert client.responses.cancel(long.id).status == "cancelled"
client.responses.delete(response.id)
for gone, expected in [
    (lambda: client.responses.retrieve(response.id), openai.NotFoundError),
    (lambda: client.responses.create(model=model, input="1", previous_response_id=response.id), openai.BadRequestError),
]:
    try:
        gone()
        raise AssertionError("a response that was deleted was found")
    except expected as error:
        assert "deleted" in error.body["message"], error.body

# Files and batches.
lines = [
    {"custom_id": f"q{i}", "method": "POST", "url": "/v1/chat/completions", "body": dict(model=model, messages=asked)}
    for i, asked in enumerate([messages, messages, []])
]
lines[0]["body"]["temperature"] = lines[1]["body"]["temperature"] = 0
data = "".join(json.dumps(line) + "\n" for line in lines).encode()
file = client.files.create(file=("in.jsonl", data), purpose="batch")
assert file.bytes == len(data) and client.files.content(file.id).read() == data
assert file.id in [other.id for other in client.files.list(purpose="batch")]
batch = client.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
while batch.status in ("validating", "in_progress", "finalizing"):
    time.sleep(0.1)
    batch = client.batches.retrieve(batch.id)
assert batch.status == "completed" and batch.request_counts.failed == 1, batch
results = [json.loads(line) for line in client.files.content(batch.output_file_id).text.splitlines()]
assert sorted(result["custom_id"] for result in results) == ["q0", "q1"], results
assert all(result["response"]["body"]["choices"][0]["message"]["content"] == text for result in results), results
assert json.loads(client.files.content(batch.error_file_id).text)["response"]["status_code"] == 400
assert batch.id in [other.id for other in client.batches.list(limit=5)]
for identity in (file.id, batch.output_file_id, batch.error_file_id):
    assert client.files.delete(identity).deleted
slow = dict(lines[0]["body"], max_tokens=2000, ignore_eos=True)
data = "".join(json.dumps(dict(lines[0], custom_id=str(i), body=slow)) + "\n" for i in range(50)).encode()
file = client.files.create(file=("in.jsonl", data), purpose="batch")
batch = client.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
assert client.batches.cancel(batch.id).status == "cancelling"
while batch.status != "cancelled":
    time.sleep(0.1)
    batch = client.batches.retrieve(batch.id)
    assert batch.status in ("validating", "in_progress", "cancelling", "cancelled"), batch

completion = client.completions.create(model=model, prompt="2+2", max_tokens=2, echo=True, logprobs=1)
assert completion.choices[0].text.startswith("2+2"), completion
assert client.models.retrieve(model).id == model

try:
    client.models.retrieve("nobody")
    raise AssertionError("a model that does not exist was found")
except openai.NotFoundError:
    pass
for wrong, expected in [
    (dict(model=model, messages=messages, temperature=-9), openai.BadRequestError),
    (dict(model=model, messages=[]), openai.BadRequestError),
]:
    try:
        client.chat.completions.create(**wrong)
    except expected as error:
        assert error.body["code"] and error.body["message"], error.body
    else:
        raise AssertionError(f"{wrong} was not refused")

print(f"openai client: content (package {openai.__version__}, answer {text!r})")
