"""Checks a server of an embedding model with the official `openai` and `ollama` packages and with LangChain: floats
and base64, token ids, dimensions, errors.

Usage: embeddings_client.py http://127.0.0.1:11116/v1
"""

import sys

import ollama
import openai
from langchain_ollama import OllamaEmbeddings
from langchain_openai import OpenAIEmbeddings

url = sys.argv[1]
client = openai.OpenAI(base_url=url, api_key="unused", max_retries=0)
model = client.models.list().data[0].id
texts = ["w5 w6", "w7"]

# The package asks for base64 and decodes it.
coded = client.embeddings.create(model=model, input=texts)
plain = client.embeddings.create(model=model, input=texts, encoding_format="float")
assert [entry.index for entry in coded.data] == [0, 1], coded
for one, other in zip(coded.data, plain.data):
    assert len(one.embedding) == len(other.embedding) > 8
    assert all(abs(a - b) < 1e-5 for a, b in zip(one.embedding, other.embedding))
assert coded.usage.prompt_tokens == coded.usage.total_tokens == 7, coded.usage

cut = client.embeddings.create(model=model, input=[[5, 6], [7]], dimensions=8, user="somebody")
for entry in cut.data:
    assert len(entry.embedding) == 8
    assert abs(sum(v * v for v in entry.embedding) - 1) < 1e-5

try:
    client.embeddings.create(model=model, input="")
    raise AssertionError("an empty text is refused")
except openai.BadRequestError as error:
    assert error.param == "input" and error.code == "invalid_value", error.body
# The only model of a server answers to every name.
assert client.embeddings.create(model="no-such-model", input="w5").model == model

chain = OpenAIEmbeddings(
    model=model, base_url=url, api_key="unused", check_embedding_ctx_length=False
)
found = chain.embed_documents(texts)
for one, other in zip(found, plain.data):
    assert all(abs(a - b) < 1e-5 for a, b in zip(one, other.embedding))
assert len(chain.embed_query("w5")) == len(found[0])

host = url.removesuffix("/v1")
client = ollama.Client(host=host)
answer = client.embed(model=model, input=texts, options={"num_ctx": 64}, keep_alive="5m")
assert answer.prompt_eval_count == 7 and answer.total_duration > 0, answer
chain = OllamaEmbeddings(model=model, base_url=host)
for vectors in (answer.embeddings, chain.embed_documents(texts)):
    for one, other in zip(vectors, plain.data, strict=True):
        assert all(abs(a - b) < 1e-5 for a, b in zip(one, other.embedding, strict=True))
assert len(client.embed(model=model, input="w5", dimensions=8).embeddings[0]) == 8
assert len(client.embeddings(model=model, prompt="w5").embedding) == len(found[0])
assert client.show(model).capabilities == ["embedding"]

print("embeddings client: content")
