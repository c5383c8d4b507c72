"""OpenAI's client, unmodified, asks for transcripts of a sound: in every shape, streamed, and in English.
Usage: python scripts/transcripts_client.py http://127.0.0.1:11116"""

import io
import sys
import wave

import openai

client = openai.OpenAI(base_url=f"{sys.argv[1]}/v1", api_key="unused", max_retries=0)

# Four seconds of a chirp whose loudness changes.
data = io.BytesIO()
with wave.open(data, "wb") as file:
    file.setnchannels(1)
    file.setsampwidth(2)
    file.setframerate(16000)
    samples = ((abs((i * i // 4000 + 37 * i) % 256 - 128) - 64) * 60 * (i // 4000 % 5 + 1) for i in range(64000))
    file.writeframes(b"".join(sample.to_bytes(2, "little", signed=True) for sample in samples))
sound = ("a.wav", data.getvalue())


def transcript(**fields):
    return client.audio.transcriptions.create(model="default", file=sound, **fields)


said = transcript().text
whole = transcript(response_format="verbose_json", timestamp_granularities=["segment"], language="en", temperature=0)
assert whole.duration == 4.0 and whole.language == "english", whole
assert "".join(segment.text for segment in whole.segments).strip() == whole.text, whole
assert transcript(response_format="text").strip() == said
assert transcript(response_format="vtt").startswith("WEBVTT")
assert "-->" in transcript(response_format="srt")
events = list(transcript(stream=True))
assert events[-1].type == "transcript.text.done" and events[-1].text == said, events
assert "".join(event.delta for event in events[:-1]).strip() == said, events
english = client.audio.translations.create(model="default", file=sound, response_format="verbose_json")
assert english.language == "english", english
for fields, param in ({"language": "zz"}, "language"), ({"response_format": "pdf"}, "response_format"):
    try:
        transcript(**fields)
        raise AssertionError(fields)
    except openai.BadRequestError as error:
        assert error.param == param, error
print(f"openai client with a sound: content (package {openai.__version__}, {len(whole.segments)} segments)")
