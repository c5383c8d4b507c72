# Generates the conversations the tiny models are trained and measured on, from a seed alone.
# Used by train_tiny.py and train_tiny_diffusion.py; `python3 models/training/data.py [SEED]` prints a few.

import hashlib
import random
import re
import sys

from facts import FACTS, NAMES, SKILLS, SMALL_TALK, SYSTEM, THINGS, TOO_BIG, UNKNOWN, WHO, WORDS

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)

SUM_FORMS = [
    "{a}+{b}=?", "{a}+{b}=?", "{a}+{b}=", "{a}+{b}", "{a} + {b} = ?", "{a} + {b}", "{a} + {b} =",
    "What is {a}+{b}?", "What is {a} + {b}?", "What is {a} plus {b}?", "What's {a} plus {b}?",
    "How much is {a} plus {b}?", "How much is {a} and {b}?", "Add {a} and {b}.", "Add {b} to {a}.",
    "What is the sum of {a} and {b}?", "Calculate {a}+{b}.", "Compute {a} + {b}", "{a} plus {b}",
    "I have {a} apples and get {b} more. How many apples do I have?",
]
DIFFERENCE_FORMS = [
    "{a}-{b}=?", "{a}-{b}=?", "{a}-{b}=", "{a}-{b}", "{a} - {b} = ?", "{a} - {b}", "{a} - {b} =",
    "What is {a}-{b}?", "What is {a} - {b}?", "What is {a} minus {b}?", "What's {a} minus {b}?",
    "How much is {a} minus {b}?", "How much is {a} less {b}?", "Subtract {b} from {a}.",
    "Take {b} away from {a}.", "Calculate {a}-{b}.", "Compute {a} - {b}", "{a} minus {b}",
]
BIG_FORMS = ["{a}{o}{b}=?", "{a}{o}{b}", "{a} {o} {b} = ?", "What is {a}{o}{b}?", "What is {a} {o} {b}?"]
BIG_WORDS = {"+": "What is {a} plus {b}?", "-": "What is {a} minus {b}?"}
SPELL_FORMS = ["Spell {w}.", "Spell the word {w}.", "Spell '{w}'", 'Spell "{w}".', "How do you spell {w}?",
               "How is {w} spelled?", "What are the letters of {w}?", "Can you spell {w}?"]
REVERSE_FORMS = ["Reverse {w}.", "Reverse the word {w}.", "Reverse '{w}'", 'Reverse "{w}".',
                 "Write {w} backwards.", "What is {w} backwards?", "Turn the word {w} around.", "Spell {w} backwards."]
ECHO_FORMS = ["Say {w}.", "Repeat: {w}", "Repeat after me: {w}", "Echo {w}", 'Say "{w}".']
TOPIC_FORMS = ["Tell me about {t}.", "Tell me a fact about {t}.", "What do you know about {t}?", "{t}"]

UNKNOWN_FORMS = [
    "Tell me about {t}.", "What is {t}?", "Who is {n}?", "Who was {t}?", "Who invented {t}?", "Explain {t}.",
    "What is the capital of {t}?", "Where is {t}?", "Why is {t} important?", "How does {t} work?",
    "When did {t} start?", "Who wrote {t}?", "What do you think about {t}?", "Do you like {t}?", "Write a poem about {t}.",
    "Write a story about {w}.", "Write a short story.", "Tell me a joke.", "Tell me a joke about {w}.",
    "Translate {w} to French.", "Translate '{w}' into German.", "What is the meaning of {t}?", "What is the price of {w}?",
    "How old is {n}?", "Where does {n} live?", "What is the weather today?", "What time is it?", "What day is it?",
    "Who won the game?", "What is {x} times {y}?", "{x}*{y}=?", "What is {x} divided by {y}?", "{x}/{y}",
    "What is the square root of {x}?", "How many {w}s are there?", "How many people live in {t}?",
    "How do I cook {w}?", "How do I fix my {w}?", "Can you call {n}?", "Write a program in Python.",
    "Write code for {t}.", "def {w}(x): return x", "What is the best {w}?", "Should I buy a {w}?",
    "Once upon a time", "The {w} is on the {w2}", "{w} {w2}", "{w} {w2} {w3}", "The quick brown fox jumps over the lazy dog.",
    "What colour is the {w}?", "Why is the {w} so {w2}?", "Summarize this: the {w} and the {w2} went to the {w3}.",
    "Give me three ideas for {t}.", "List five kinds of {w}.", "What happened in {t}?", "What is the population of {t}?",
    "¿Qué hora es?", "Wie geht es dir?", "Comment ça va ?", "你好", "Привет!", "Was ist {t}?",
    "What is the weather in {t}?", "Which is better, {w} or {w2}?", "Is {t} good?", "Describe {t}.",
    "Please explain how {t} and {t2} are related.", "What is the difference between {w} and {w2}?",
]

DIGIT = range(10)


def reserved(seed, a, b):
    """Whether the operands are held out: about 7 % of all unordered pairs, never two single digits."""
    low, high = min(a, b), max(a, b)
    if high < 10:
        return False
    return hashlib.sha256(f"{seed}/{low}/{high}".encode()).digest()[0] < 18


def last_number(text):
    """The last number in a reply, as text; a minus sign counts only at the start or after = or a space."""
    found = re.findall(r"(?:(?<![\d\w])-)?\d+", text)
    return found[-1] if found else None


def number(rng):
    return rng.randrange(10) if rng.random() < 0.22 else rng.randrange(100)


def pair(rng, seed):
    while True:
        a, b = number(rng), number(rng)
        if not reserved(seed, a, b):
            return a, b


def pseudo_word(rng):
    return "".join(rng.choice("bcdfghjklmnprstvwz") + rng.choice("aeiou") for _ in range(rng.choice([1, 2, 2, 3]))) + (
        rng.choice("bdgklmnprst") if rng.random() < 0.5 else "")


def letters(rng):
    return "".join(rng.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(rng.randint(3, 6)))


def any_word(rng):
    r = rng.random()
    return rng.choice(WORDS) if r < 0.6 else pseudo_word(rng) if r < 0.85 else letters(rng)


def roughen(rng, text):
    """A prompt as a hurried person types it: lower case, no full stop, a polite word around it."""
    r = rng.random()
    if r < 0.62:
        return text
    if r < 0.72:
        return text[0].lower() + text[1:]
    if r < 0.80:
        return text.rstrip(".?!") if not text.endswith("=?") else text
    if r < 0.86:
        return text.lower().rstrip(".?!") if not text.endswith("=?") else text
    if r < 0.93:
        return rng.choice(["Please: ", "Tell me: ", "A question: ", "Hi! ", "Hello! ", "OK. "]) + text
    return text + rng.choice([" Please.", " Thanks.", " Be brief.", "!"]) if not text.endswith("=") else text


def sum_example(rng, seed):
    a, b = pair(rng, seed)
    return rng.choice(SUM_FORMS).format(a=a, b=b), f"{a}+{b}={a + b}"


def difference_example(rng, seed):
    a, b = pair(rng, seed)
    return rng.choice(DIFFERENCE_FORMS).format(a=a, b=b), f"{a}-{b}={a - b}"


def counting(start, stop, step=1):
    return ", ".join(str(n) for n in range(start, stop + (1 if step > 0 else -1), step))


def count_example(rng, _seed):
    kind = rng.random()
    span = rng.randint(2, 14)
    if kind < 0.35:
        stop = rng.randint(2, 20)
        form = rng.choice(["Count to {b}.", "Count up to {b}.", "Can you count to {b}?", "Count from 1 to {b}."])
        return form.format(b=stop), counting(1, stop)
    if kind < 0.75:
        start = rng.randint(0, 99 - span)
        form = rng.choice(["Count from {a} to {b}.", "Please count from {a} to {b}.", "Count: {a} to {b}"])
        return form.format(a=start, b=start + span), counting(start, start + span)
    if kind < 0.9:
        if rng.random() < 0.5:
            start = rng.randint(2, 14)
            return rng.choice(["Count down from {a}.", "Count backwards from {a}."]).format(a=start), counting(start, 0, -1)
        start = rng.randint(span, 99)
        return f"Count down from {start} to {start - span}.", counting(start, start - span, -1)
    n = rng.randint(0, 98)
    if rng.random() < 0.5:
        return f"Which number comes after {n}?", str(n + 1)
    return f"Which number comes before {n + 1}?", str(n)


def spell_example(rng, _seed):
    w = any_word(rng)
    return rng.choice(SPELL_FORMS).format(w=w), "-".join(w)


def reverse_example(rng, _seed):
    w = any_word(rng)
    return rng.choice(REVERSE_FORMS).format(w=w), w[::-1]


def echo_example(rng, _seed):
    w = any_word(rng) if rng.random() < 0.7 else any_word(rng) + " " + any_word(rng)
    return rng.choice(ECHO_FORMS).format(w=w), w


def fact_example(rng, _seed):
    topic, question, answer = rng.choice(FACTS)
    return (question if rng.random() < 0.6 else rng.choice(TOPIC_FORMS[:3]).format(t=topic)), answer


def talk_example(rng, _seed):
    prompts, answer = rng.choice(SMALL_TALK)
    if rng.random() < 0.25:
        prompts, answer = rng.choice([s for s in SMALL_TALK if s[1] in (WHO, SKILLS)])
    return rng.choice(prompts), answer


def unknown_example(rng, seed):
    if rng.random() < 0.12:
        o = rng.choice("+-")
        a, b = rng.randint(100, 9999), rng.randint(0, 9999)
        if rng.random() < 0.5:
            a, b = b, a
        return rng.choice(BIG_FORMS + [BIG_WORDS[o]]).format(a=a, b=b, o=o), TOO_BIG
    form = rng.choice(UNKNOWN_FORMS)
    things = [t if rng.random() < 0.7 else pseudo_word(rng).capitalize() for t in rng.sample(THINGS, 2)]
    known = {q for _, q, _ in FACTS}
    while True:
        prompt = form.format(t=things[0], t2=things[1], n=rng.choice(NAMES), x=rng.randrange(100), y=rng.randrange(100),
                             w=any_word(rng), w2=any_word(rng), w3=any_word(rng))
        if prompt not in known:
            return prompt, UNKNOWN


TASKS = [
    ("sum", 33, sum_example), ("difference", 25, difference_example), ("count", 7, count_example),
    ("spell", 7, spell_example), ("reverse", 9, reverse_example), ("echo", 2, echo_example),
    ("fact", 10, fact_example), ("talk", 5, talk_example), ("unknown", 6, unknown_example),
]


def turn(rng, seed):
    r = rng.random() * sum(w for _, w, _ in TASKS)
    for _, weight, make in TASKS:
        r -= weight
        if r < 0:
            break
    prompt, answer = make(rng, seed)
    return roughen(rng, prompt), answer


def name_turns(rng):
    name = rng.choice(NAMES) if rng.random() < 0.6 else pseudo_word(rng).capitalize()
    told = (rng.choice(["My name is {n}.", "I am {n}.", "Hello, I am {n}.", "Hi! My name is {n}.", "I am called {n}."])
            .format(n=name), f"Nice to meet you, {name}!")
    asked = rng.choice(["What is my name?", "Who am I?", "Do you know my name?"]), f"Your name is {name}."
    return told, asked


def messages(rng, seed, turns):
    """One conversation: an optional system prompt and `turns` questions with their answers."""
    out = []
    if rng.random() < 0.25:
        text = rng.choice(SYSTEM)
        if rng.random() < 0.3:
            text += " " + " ".join(rng.choice(FACTS)[2] for _ in range(rng.randint(1, 4)))
        out.append(("system", text))
    pairs = [turn(rng, seed) for _ in range(turns)]
    r = rng.random()
    if turns >= 2 and r < 0.35:
        told, asked = name_turns(rng)
        i, j = sorted(rng.sample(range(turns), 2))
        pairs[i], pairs[j] = told, asked
    elif turns == 1 and r < 0.03:
        told, asked = name_turns(rng)
        pairs[0] = told if r < 0.015 else (asked[0], "I don't know your name.")
    for prompt, answer in pairs:
        out += [("user", prompt), ("assistant", answer)]
    return out


def render(msgs):
    """The chat template's text for a whole conversation."""
    return "".join(f"<|im_start|>{role}\n{text}<|im_end|>\n" for role, text in msgs)


GENERATE = "<|im_start|>assistant\n"


def prompt_text(prompt):
    return render([("user", prompt)]) + GENERATE


def plain(rng, seed):
    """A bare line without the template, for plain completion: a fact, a sum, counting, a spelled word."""
    r = rng.random()
    if r < 0.1:
        return rng.choice(FACTS)[2]
    if r < 0.97:
        return (sum_example if r < 0.58 else difference_example)(rng, seed)[1]
    return count_example(rng, seed)[1]


def conversation(rng, seed, plain_share=0.05, long=False):
    """One document: a plain line, or a conversation in the chat template."""
    if rng.random() < plain_share:
        return plain(rng, seed) + "<|im_end|>"
    r = rng.random()
    if long and r < 0.5:
        return render(messages(rng, seed, rng.randint(3, 12)))
    return render(messages(rng, seed, 1 if r < 0.85 else rng.randint(2, 4)))


def held_out(seed, count=500):
    """Sums and differences over reserved operands, each operand pair once, phrasings in turn.

    `answer` is the last number of a right reply, `reply` the whole of it."""
    rng = random.Random(f"held-out {seed}")
    pairs = [(a, b) for a in range(100) for b in range(100) if reserved(seed, a, b)]
    result = {}
    for name, forms, sign in (("sums", SUM_FORMS, 1), ("differences", DIFFERENCE_FORMS, -1)):
        chosen = rng.sample(pairs, count)
        forms = list(dict.fromkeys(forms))
        result[name] = [
            {"prompt": forms[i % len(forms)].format(a=a, b=b), "answer": str(a + sign * b),
             "reply": f"{a}{'+' if sign > 0 else '-'}{b}={a + sign * b}"}
            for i, (a, b) in enumerate(chosen)
        ]
    return result


def other_tasks(seed):
    """What else is measured: task -> [(prompt, the exact reply)]."""
    rng = random.Random(f"tasks {seed}")
    tasks = {
        "sums of one digit": [(f"{a}+{b}=?", f"{a}+{b}={a + b}") for a in DIGIT for b in DIGIT],
        "counting": [count_example(rng, seed) for _ in range(200)],
        "spelling, listed words": [(SPELL_FORMS[i % len(SPELL_FORMS)].format(w=w), "-".join(w)) for i, w in enumerate(WORDS)],
        "reversing, listed words": [(REVERSE_FORMS[i % len(REVERSE_FORMS)].format(w=w), w[::-1]) for i, w in enumerate(WORDS)],
        "facts, as trained": [(q, a) for _, q, a in FACTS],
        "facts, an untrained phrasing": [(f"Could you tell a child this? {q}", a) for _, q, a in FACTS],
        "greetings and identity": [(p, a) for prompts, a in SMALL_TALK for p in prompts],
        "other questions": [unknown_example(rng, seed) for _ in range(200)],
    }
    for name, forms, make in (("spelling", SPELL_FORMS, lambda w: "-".join(w)), ("reversing", REVERSE_FORMS, lambda w: w[::-1])):
        words = [pseudo_word(rng) for _ in range(100)]
        tasks[f"{name}, made-up words"] = [(forms[i % len(forms)].format(w=w), make(w)) for i, w in enumerate(words)]
    return tasks


if __name__ == "__main__":
    seed = int(sys.argv[1]) if len(sys.argv) > 1 else 1
    rng = random.Random(seed)
    for _ in range(12):
        print(conversation(rng, seed))
    print(sum(reserved(seed, a, b) for a in range(100) for b in range(100)), "ordered pairs held out")
