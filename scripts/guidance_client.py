"""Checks a server with `guidance`, whose client for vLLM sends a constraint under the names of several versions.

Usage: guidance_client.py http://127.0.0.1:11116/v1
"""

import json
import sys

from guidance import assistant, gen, select, user
from guidance import json as gen_json
from guidance.models.experimental import VLLMModel

model = VLLMModel("default", base_url=sys.argv[1], api_key="unused")

with user():
    asked = model + "2+2=?"
with assistant():
    lm = asked + gen("digits", regex="[0-9]{1,3}")
assert lm["digits"].isdigit() and len(lm["digits"]) <= 3, lm["digits"]

with assistant():
    chosen = asked + select(["yes", "no"], name="answer")
assert chosen["answer"] in ("yes", "no"), chosen["answer"]

schema = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}},
    "required": ["ok"],
    "additionalProperties": False,
}
with assistant():
    structured = asked + gen_json(name="object", schema=schema)
assert isinstance(json.loads(structured["object"])["ok"], bool), structured["object"]

print("guidance: content")
