"""Checks a server with `huggingface_hub`: chats by the address of the server alone, tools, answers of a schema.

Usage: huggingface_client.py http://127.0.0.1:11116/v1
"""

import json
import sys

from huggingface_hub import InferenceClient

url = sys.argv[1]
messages = [{"role": "user", "content": "2+2=?"}]
greedy = {"messages": messages, "temperature": 0.0, "max_tokens": 64}
schema = {
    "type": "object",
    "properties": {"days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["days"],
}

# The package names no model, one of its own, or the one that it is given.
for client in [InferenceClient(base_url=url), InferenceClient(model=url)]:
    for named in [{}, {"model": "some/model"}]:
        if client.model and named:
            continue
        answer = client.chat_completion(**greedy, **named)
        text = answer.choices[0].message.content
        assert "4" in text, text
        chunks = client.chat_completion(**greedy, **named, stream=True)
        streamed = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
        assert streamed == text, streamed

# With `base_url` the package writes the schema in the form of text-generation-inference.
client = InferenceClient(base_url=url)
form = {"type": "json_schema", "json_schema": {"name": "weather", "schema": schema, "strict": True}}
answer = client.chat_completion(**greedy, response_format=form)
assert 1 <= json.loads(answer.choices[0].message.content)["days"] <= 9, answer

tool = {"type": "function", "function": {"name": "weather", "description": "", "parameters": schema}}
answer = client.chat_completion(**greedy, tools=[tool], tool_choice="required")
call = answer.choices[0].message.tool_calls[0]
assert call.function.name == "weather", call
assert 1 <= json.loads(call.function.arguments)["days"] <= 9, call

print("Hugging Face client: content")
