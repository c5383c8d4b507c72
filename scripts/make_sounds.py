"""Writes the sounds of tests/media, and the samples that libsndfile and ffmpeg decode of them.

    pip install numpy soundfile av
    python scripts/make_sounds.py
"""

from pathlib import Path

import av
import numpy as np
import soundfile

RATE = 22_050
# A quarter of a second, and no multiple of a block.
SAMPLES = 5_513
FOLDER = Path(__file__).parent.parent / "tests/media"


def sound() -> np.ndarray:
    t = np.arange(SAMPLES) / RATE
    left = 0.4 * np.sin(2 * np.pi * 440 * t) + 0.1 * np.sin(2 * np.pi * 3000 * t * (1 + t))
    right = 0.3 * np.sin(2 * np.pi * 660 * t)
    return (np.round(np.stack([left, right], 1) * 32768) / 32768).astype(np.float32)


def main() -> None:
    samples = sound()
    for name, options in {"flac": {"subtype": "PCM_16"}, "mp3": {}, "ogg": {"subtype": "VORBIS"}}.items():
        file = FOLDER / f"stereo.{name}"
        soundfile.write(file, samples, RATE, **options)
        decoded, _ = soundfile.read(file, dtype="float32")
        np.save(f"{file}.npy", decoded.mean(1))
    file = FOLDER / "stereo.m4a"
    with av.open(file, "w") as container:
        stream = container.add_stream("aac", rate=RATE, layout="stereo")
        frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(samples.T), format="fltp", layout="stereo")
        frame.sample_rate, frame.pts = RATE, 0
        for packet in [*stream.encode(frame), *stream.encode(None)]:
            container.mux(packet)
    with av.open(file) as container:
        frames = [frame.to_ndarray() for frame in container.decode(audio=0)]
    np.save(f"{file}.npy", np.concatenate(frames, 1).mean(0).astype(np.float32))


main()
