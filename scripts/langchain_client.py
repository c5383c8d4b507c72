"""Checks a server with LangChain's OpenAI package: answers, streams, tools, structured output.

Usage: langchain_client.py http://127.0.0.1:11116/v1
"""

import sys

from importlib.metadata import version
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, Field

chat = ChatOpenAI(
    base_url=sys.argv[1], api_key="unused", model="default", temperature=0, max_retries=0
)

answer = chat.invoke("2+2=?")
assert "4" in answer.content, answer
assert answer.usage_metadata["output_tokens"] > 0, answer
assert "".join(chunk.content for chunk in chat.stream("2+2=?")) == answer.content


class Days(BaseModel, extra="forbid"):
    days: int = Field(ge=1, le=9)


assert 1 <= chat.with_structured_output(Days).invoke("2+2=?").days <= 9


@tool(args_schema=Days)
def get_weather(days: int) -> str:
    """The weather."""
    return "rain" * days


caller = chat.bind_tools([get_weather], tool_choice="get_weather", strict=True)
call = caller.invoke("2+2=?")
assert call.tool_calls[0]["name"] == "get_weather", call
result = get_weather.invoke(call.tool_calls[0])
assert isinstance(result, ToolMessage), result
chat.invoke([HumanMessage("2+2=?"), call, result])
streamed = None
for chunk in caller.stream("2+2=?"):
    streamed = chunk if streamed is None else streamed + chunk
assert streamed.tool_calls[0]["args"] == call.tool_calls[0]["args"], streamed

responses = ChatOpenAI(
    base_url=sys.argv[1], api_key="unused", model="default", use_responses_api=True, max_retries=0
)
assert "4" in responses.invoke("2+2=?").text

print(f"langchain client: content (package {version('langchain-openai')})")
