"""Checks a server with the official `anthropic` package: messages, streams, tools, counts, errors.

Usage: anthropic_client.py http://127.0.0.1:11116
"""

import sys
from typing import Literal

import anthropic

client = anthropic.Anthropic(base_url=sys.argv[1], api_key="unused", max_retries=0)
messages = [{"role": "user", "content": "2+2=?"}]
# Not every version of the package has the field.
greedy = {"extra_body": {"temperature": 0}}

message = client.messages.create(
    model="default", max_tokens=40, messages=messages, **greedy
)
text = message.content[0].text
assert "4" in text, text
assert message.stop_reason == "end_turn", message
assert message.usage.output_tokens > 0, message.usage

with client.messages.stream(
    model="default", max_tokens=40, messages=messages, **greedy
) as stream:
    assert "".join(stream.text_stream) == text
    final = stream.get_final_message()
assert final.content[0].text == text, final
assert final.usage.cache_read_input_tokens > 0, final.usage

count = client.messages.count_tokens(model="default", messages=messages)
assert count.input_tokens == message.usage.input_tokens + (
    message.usage.cache_read_input_tokens or 0
)

schema = {
    "type": "object",
    "properties": {"days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["days"],
    "additionalProperties": False,
}
request = dict(
    model="default",
    max_tokens=200,
    messages=messages,
    **greedy,
    tools=[{"name": "get_weather", "input_schema": schema}],
    tool_choice={"type": "tool", "name": "get_weather"},
)
call = client.messages.create(**request).content[-1]
assert call.type == "tool_use" and 1 <= call.input["days"] <= 9, call
with client.messages.stream(**request) as stream:
    assert stream.get_final_message().content[-1].input == call.input
result = {"type": "tool_result", "tool_use_id": call.id, "content": "rain"}
answer = client.messages.create(
    model="default",
    max_tokens=40,
    messages=[
        *messages,
        {"role": "assistant", "content": [call.model_dump(include={"type", "id", "name", "input"})]},
        {"role": "user", "content": [result]},
    ],
)
assert answer.role == "assistant", answer

for wrong, expected in [
    (dict(model="default", max_tokens=0, messages=messages), anthropic.BadRequestError),
    (dict(model="default", max_tokens=4, messages=[]), anthropic.BadRequestError),
]:
    try:
        client.messages.create(**wrong)
    except expected as error:
        assert error.body["error"]["message"], error.body
    else:
        raise AssertionError(f"{wrong} was not refused")

# The runner of tools asks for a kept conversation first, and sends it whole when that is refused.
taken = []


@anthropic.beta_tool
def weather(days: Literal[1, 2, 3]) -> str:
    """The weather of some days.

    Args:
        days: The number of days.
    """
    taken.append(days)
    return "rain"


runner = client.beta.messages.tool_runner(
    model="default",
    max_tokens=64,
    messages=messages,
    tools=[weather],
    tool_choice={"type": "tool", "name": "weather"},
    max_iterations=2,
    **greedy,
)
assert [message.stop_reason for message in runner] == ["tool_use", "tool_use"]
assert len(taken) == 2 and set(taken) <= {1, 2, 3}, taken

print(f"anthropic client: content (package {anthropic.__version__}, answer {text!r})")
