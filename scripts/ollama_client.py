"""Checks a server with packages that know Ollama's API only: the official `ollama` package, langchain-ollama, and llm
with llm-ollama. Answers and streams, tools, structured output, reasoning, prompts, models, loading and unloading, errors.

Usage: ollama_client.py http://127.0.0.1:11116
"""

import json
import os
import subprocess
import sys
import tempfile
import typing
from importlib.metadata import version
from pathlib import Path

import ollama
import pydantic
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_ollama import ChatOllama, OllamaLLM

host = sys.argv[1]
client = ollama.Client(host=host)
greedy = {"temperature": 0, "num_ctx": 512}

# The models.
listed = client.list().models[0]
assert listed.digest and listed.size > 0 and listed.modified_at and listed.details.family, listed
name = listed.model.removesuffix(":latest")
shown = client.show(listed.model)
assert "completion" in shown.capabilities and "messages" in shown.template, shown
arch = shown.modelinfo["general.architecture"]
assert shown.modelinfo[f"{arch}.context_length"] > 0, shown.modelinfo
asked = dict(model=name, messages=[{"role": "user", "content": "2+2=?"}], options=greedy)

# Whole and streamed.
answer = client.chat(**asked, logprobs=True, top_logprobs=3, keep_alive="5m")
text = answer.message.content
assert "4" in text and answer.done and answer.done_reason == "stop", answer
assert answer.eval_count > 0 and answer.total_duration >= answer.eval_duration > 0, answer
assert "".join(entry.token for entry in answer.logprobs) == text, answer.logprobs
assert all(entry.logprob <= 0 and len(entry.top_logprobs) == 3 for entry in answer.logprobs)
parts = list(client.chat(**asked, stream=True))
assert "".join(part.message.content for part in parts) == text, parts
assert [part.done for part in parts] == [False] * (len(parts) - 1) + [True], parts
assert parts[-1].eval_count == answer.eval_count, parts[-1]
running = client.ps().models[0]
assert running.model == listed.model and running.size > 0 and running.expires_at, running


class Days(pydantic.BaseModel, extra="forbid"):
    days: int = pydantic.Field(ge=1, le=9)


parsed = client.chat(**asked, format=Days.model_json_schema()).message.content
assert 1 <= Days.model_validate_json(parsed).days <= 9, parsed
for think in (True, False, "low"):
    assert client.chat(**asked, think=think).message.content, think


# The built-in model is no caller of tools, so a schema makes it write a call.
class Call(pydantic.BaseModel, extra="forbid"):
    name: typing.Literal["get_weather"]
    parameters: Days


def get_weather(days: int) -> str:
    """The weather.

    Args:
        days: Number of days.
    """
    return "rain" * days


forced = dict(asked, tools=[get_weather], format=Call.model_json_schema())
called = client.chat(**forced).message
call = called.tool_calls[0].function
assert call.name == "get_weather" and 1 <= call.arguments["days"] <= 9, called
streamed = [part.message for part in client.chat(**forced, stream=True) if part.message.tool_calls]
assert streamed[0].tool_calls[0].function == call, streamed
result = {"role": "tool", "tool_name": call.name, "content": get_weather(**call.arguments)}
turn = dict(asked, messages=[*asked["messages"], called, result], tools=[get_weather])
assert client.chat(**turn).done

# Prompts.
prompt = dict(model=name, prompt="2+2=?", options=greedy)
assert client.generate(**prompt).response == text
assert "".join(part.response for part in client.generate(**prompt, stream=True)) == text
assert client.generate(**prompt, raw=True, think=False).eval_count > 0
Days.model_validate_json(client.generate(**prompt, format=Days.model_json_schema()).response)

# Loading, unloading, and what there is already.
assert client.generate(model=name).done_reason == "load"
assert client.chat(model=name, messages=[], keep_alive=-1).done_reason == "load"
assert [part.status for part in client.pull(name, stream=True)][-1] == "success"
assert client.pull(name).status == "success"

for wrong, status in [
    (lambda: client.chat(**dict(asked, options={"temperature": -9})), 400),
    (lambda: list(client.chat(**dict(asked, options={"top_p": 9}), stream=True)), 400),
    (lambda: client.pull("no owner"), 400),
    (lambda: client.delete(name), 400),
    (lambda: client.embed(name, "text"), 400),
]:
    try:
        wrong()
    except ollama.ResponseError as error:
        assert error.status_code == status and error.error, error
    else:
        raise AssertionError(f"{wrong} was not refused")
print(f"ollama client: content (package {version('ollama')}, answer {text!r})")

chat = ChatOllama(base_url=host, model=name, temperature=0, num_ctx=512, validate_model_on_init=True)
assert chat.invoke("2+2=?").content == text
assert "".join(chunk.content for chunk in chat.stream("2+2=?")) == text
assert chat.invoke("2+2=?").usage_metadata["output_tokens"] == answer.eval_count
assert 1 <= chat.with_structured_output(Days, method="json_schema").invoke("2+2=?").days <= 9
weather = tool(args_schema=Days)(get_weather)
caller = chat.bind_tools([weather], format=Call.model_json_schema())
call = caller.invoke("2+2=?")
assert isinstance(call, AIMessage) and call.tool_calls[0]["name"] == "get_weather", call
result = weather.invoke(call.tool_calls[0])
assert isinstance(result, ToolMessage), result
chat.bind_tools([weather]).invoke([HumanMessage("2+2=?"), call, result])
assert "4" in OllamaLLM(base_url=host, model=name, temperature=0).invoke("2+2=?")
print(f"langchain-ollama: content (package {version('langchain-ollama')})")

with tempfile.TemporaryDirectory() as folder:
    environment = dict(os.environ, OLLAMA_HOST=host, LLM_USER_PATH=folder)
    program = Path(sys.executable).with_name("llm")

    def llm(*arguments):
        run = subprocess.run([program, *arguments], env=environment, capture_output=True, text=True)
        assert run.returncode == 0, run.stdout + run.stderr
        return run.stdout.strip()

    # The plugin puts a prefix before the names that the server lists.
    names = [f"ollama/{listed.model}", f"ollama/{name}"]
    models = llm("models")
    assert f"Ollama: {names[0]} (aliases: {names[1]})" in models, models
    assert llm("-m", names[1], "2+2=?", "-o", "temperature", "0") == text
    assert llm("-m", names[0], "--no-stream", "2+2=?", "-o", "temperature", "0") == text
    schema = llm("-m", names[1], "2+2=?", "--schema", json.dumps(Days.model_json_schema()))
    Days.model_validate_json(schema)
print(f"llm with llm-ollama: content (packages {version('llm')}, {version('llm-ollama')})")
