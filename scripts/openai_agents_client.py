"""Checks a server with OpenAI's agents SDK as it is by default (responses): turns whose state the server keeps, a tool,
a session of the client, a stream.

Usage: openai_agents_client.py http://127.0.0.1:11116/v1
"""

import asyncio
import sys
from typing import Literal

import agents
import openai

agents.set_default_openai_client(openai.AsyncOpenAI(base_url=sys.argv[1], api_key="unused", max_retries=0))
agents.set_tracing_disabled(True)
greedy = agents.ModelSettings(temperature=0, max_tokens=64)
calls = []


@agents.function_tool
def weather(city: Literal["Bonn", "Rome"]) -> str:
    """The weather in a city."""
    calls.append(city)
    return "rain"


async def main() -> None:
    agent = agents.Agent(name="plain", model="default", model_settings=greedy)
    # Each turn sends what is new, and names the response before.
    first = await agents.Runner.run(agent, "2+2=?")
    assert "4" in first.final_output, first
    second = await agents.Runner.run(agent, "3+3=?", previous_response_id=first.last_response_id)
    assert second.final_output, second
    counts = [run.raw_responses[-1].usage.input_tokens for run in (first, second)]
    assert counts[0] < counts[1], counts

    # Within one run, the result of the tool follows the response with the call.
    forced = agents.ModelSettings(temperature=0, max_tokens=200, tool_choice="required")
    caller = agents.Agent(name="caller", model="default", tools=[weather], model_settings=forced)
    run = await agents.Runner.run(caller, "2+2=?", auto_previous_response_id=True, max_turns=4)
    assert calls and len(run.raw_responses) >= 2 and run.final_output is not None, run

    # The client keeps the items.
    session = agents.SQLiteSession("one")
    for question in ("2+2=?", "3+3=?"):
        assert (await agents.Runner.run(agent, question, session=session)).final_output
    assert len(await session.get_items()) == 4

    stream = agents.Runner.run_streamed(agent, "2+2=?", previous_response_id=second.last_response_id)
    deltas = [
        event.data.delta
        async for event in stream.stream_events()
        if event.type == "raw_response_event" and event.data.type == "response.output_text.delta"
    ]
    assert "".join(deltas) == stream.final_output, (deltas, stream.final_output)


asyncio.run(main())
print(f"openai-agents: content (package {agents.version.__version__}, calls {calls})")
