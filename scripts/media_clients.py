"""Client packages, unmodified, ask a model about a picture: every one gets the answer of the plain request.
Usage: python scripts/media_clients.py http://127.0.0.1:11116 PICTURE.png"""

import base64
import sys
from importlib.metadata import version
from pathlib import Path

import anthropic
import ollama
import openai
from langchain_core.messages import HumanMessage
from langchain_ollama import ChatOllama
from langchain_openai import ChatOpenAI

url, path = sys.argv[1], Path(sys.argv[2])
data = base64.b64encode(path.read_bytes()).decode()
data_url = f"data:image/png;base64,{data}"
question = "What is this?"
length = dict(max_tokens=8, temperature=0)
client = openai.OpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0)


def ask(*parts, **extra):
    messages = [{"role": "user", "content": list(parts)}]
    return client.chat.completions.create(model="default", messages=messages, **length, **extra)


picture = {"type": "image_url", "image_url": {"url": data_url, "detail": "high"}}
text = {"type": "text", "text": question}
answer = ask(picture, text)
said = answer.choices[0].message.content
assert said and said != ask(text).choices[0].message.content, said
n_tokens = answer.usage.prompt_tokens
assert answer.usage.prompt_tokens_details.image_tokens > 0, answer.usage
streamed = ask(picture, text, stream=True)
assert "".join(chunk.choices[0].delta.content or "" for chunk in streamed if chunk.choices) == said


def respond(**image):
    content = [{"type": "input_image", "detail": "auto", **image}, {"type": "input_text", "text": question}]
    return client.responses.create(
        model="default", input=[{"role": "user", "content": content}], max_output_tokens=8, temperature=0
    )


assert respond(image_url=data_url).output_text == said
file = client.files.create(file=path, purpose="vision")
response = respond(file_id=file.id)
assert response.output_text == said and response.usage.input_tokens == n_tokens, response
assert client.files.delete(file.id).deleted
try:
    ask({"type": "image_url", "image_url": {"url": "https://example.com/a.png"}})
    raise AssertionError("an address was fetched")
except openai.BadRequestError as error:
    assert error.param == "messages[0].content[0].image_url", error
    assert "--media-fetch" in error.message, error
print(f"openai client with a picture: content (package {openai.__version__}, answer {said!r})")

claude = anthropic.Anthropic(base_url=url, api_key="unused", max_retries=0)
source = {"type": "base64", "media_type": "image/png", "data": data}
messages = [{"role": "user", "content": [{"type": "image", "source": source}, text]}]
message = claude.messages.create(
    model="default", messages=messages, max_tokens=8, extra_body={"temperature": 0}
)
assert message.content[0].text == said, message
assert claude.messages.count_tokens(model="default", messages=messages).input_tokens == n_tokens
print(f"anthropic client with a picture: content (package {anthropic.__version__})")

host = ollama.Client(host=url)
options = {"temperature": 0, "num_predict": 8}
name = host.list().models[0].model
assert "vision" in host.show(name).capabilities
# The package reads files, bytes and base64.
for image in (path, path.read_bytes(), data):
    seen = host.chat(name, messages=[{"role": "user", "content": question, "images": [image]}], options=options)
    assert seen.message.content == said, seen
assert host.generate(name, question, images=[data], options=options).response == said
print(f"ollama client with a picture: content (package {version('ollama')})")

parts = [
    {"type": "image", "source_type": "base64", "mime_type": "image/png", "data": data},
    {"type": "text", "text": question},
]
openai_like = ChatOpenAI(base_url=f"{url}/v1", api_key="unused", model="default", max_retries=0, **length)
assert openai_like.invoke([HumanMessage(parts)]).text == said
assert openai_like.invoke([HumanMessage([picture, text])]).text == said
ollama_like = ChatOllama(base_url=url, model=name, temperature=0, num_predict=8)
seen = ollama_like.invoke([HumanMessage([{"type": "image_url", "image_url": data_url}, text])])
# The package puts a line end before the text.
assert n_tokens <= seen.usage_metadata["input_tokens"] <= n_tokens + 1, seen
print(f"langchain with a picture: content (package {version('langchain-core')})")
