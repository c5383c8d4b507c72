#!/usr/bin/env python3
"""Filters, tests and methods of Jinja2 on generated arguments, as `tests/goldens/template_filters.json`.

Usage: make_template_goldens.py OUT.json (needs the packages jinja2 and transformers)

The engine is the one that `apply_chat_template` of transformers sets up. The file holds `values` (literals of the
template language) and `forms`: an expression in which `@` stands for a value, and for some values, by their index,
what `{{ expression }}` renders to; null where Jinja2 raises an error.
"""

import json
import random
import sys
import warnings

from transformers.utils.chat_template_utils import _compile_jinja_template

warnings.filterwarnings("ignore")

TEXTS = [
    "", "abc", "Hello wORLD, it's 2nd", " \t x  y \n", "a\nb\n\nc", "{\n", "\n", "one\r\ntwo\rthree\n", "ab\u000bc\u001cd\u2028e",
    "ÀÉß İŉ ǆ", "ΑΣ ΑΣΑ Σ", "ﬁne ﬀ", "<a href=\"x\">&'amp; &lt;b&gt;</a> <!-- c --> t", "3.7", "-12", " 0x1F", "1_000", "1e3", "-0.0",
    "x.y.z", "日本語 テキスト", "🎉 ok e\u0301", "²³½٣", "the quick brown fox-jumps over a verylongwordthatdoesnotfit",
    "%s and %d%%", "{} {0!r:>6}", "a=1&b=ü/ c", "k\tv\tw", "-7", "They're bill's friends\u2014OK_go", "\u00a0x\u200b",
]
NUMBERS = ["0", "1", "-7", "12345678901234567890", "3.7", "-2.5", "2.5", "0.5", "1e20", "1e-5", "123456.0", "1e16"]
OTHERS = ["true", "false", "none", "missing", "missing.x"]
LISTS = [
    "[]", "[3,1,2]", "['b','A','c','a','B']", "[[1,2],[3]]", "[1,'a',none,true,2.5]", "(1,2)", "('a',)", "()", "['x',missing]",
    "[2.5,1,true]", "['<b>','&'|safe]", "range(7)|list", "[none,1]", "[{'n':'x','v':3},{'n':'y','v':1},{'n':'x','v':2}]",
    "[{'n':{'m':'b'}},{'n':{'m':'A'}}]", "[{'n':1},{'v':2}]", "[('a',1),('b',2)]",
]
MAPS = ["{}", "{'b':1,'a':2,'C':0}", "{'x':{'y':[1,'ü']},'items':5}", "{2:'one',none:2,true:3}", "{'class':'a b','id':none,'x>y':1}"]


def literal(text):
    """A text as the template language writes it."""
    out = ""
    for c in text:
        if c in "\\'":
            out += "\\" + c
        elif c.isprintable():
            out += c
        elif c in "\n\r\t":
            out += {"\n": "\\n", "\r": "\\r", "\t": "\\t"}[c]
        else:
            out += f"\\u{ord(c):04x}"
    return f"'{out}'"


VALUES = [literal(t) for t in TEXTS] + NUMBERS + OTHERS + LISTS + MAPS
N_TEXTS = len(TEXTS)

# Forms for any value.
ANY = """
abs|attr('x')|attr('n')|capitalize|center(11)|center|count|d('D')|default('D',true)|default(default_value='D',boolean=false)|e|escape
first|first|float|float(1.5)|forceescape|int|int(5)|int(base=16)|int(0,2)|int(default=3,base=8)|items|last|length|list|lower|max|min|max(case_sensitive=true)
min(true)|reverse|round|round(1)|round(2,'floor')|round(0,'ceil')|round(-1)|safe|string|striptags|sum|title|tojson|tojson(indent=2)|trim|trim('a ')
unique|upper|urlencode|wordcount|pprint|sort|sort(reverse=true)|sort(false,true)|filesizeformat|filesizeformat(true)|join|join(', ')|join('<',attribute='n')
replace('a','<')|replace('','-',2)|replace('o','0',count=1)|truncate(9)|truncate(9,true)|truncate(12,false,'+',0)|truncate(length=5,killwords=true,end='')
wordwrap(10)|wordwrap(6,false)|wordwrap(8,wrapstring='|')|wordwrap(12,break_on_hyphens=false)|indent|indent(2)|indent(4,first=true)|indent(2,true,true)|indent('> ')
indent(width=3,blank=true)|indent('>',true)|format('a',1)|format(1,2)|groupby('n')|groupby('n.m')|groupby('v',default=0)|dictsort|dictsort(false,'value')
dictsort(true)|dictsort(by='value',reverse=true)|xmlattr|xmlattr(false)|batch(2)|batch(3,'-')|slice(2)|slice(3,'-')|slice(3)|map('upper')|map(attribute='n')
map(attribute='v',default='?')|map('int')|map('default','q')|map('replace','a','b')|select|reject|select('odd')|select('string')|reject('none')|select('equalto',1)|selectattr('n')
selectattr('n','equalto','x')|rejectattr('v')|rejectattr('v','gt',1)|sum(attribute='v')|sum(start=10)|sum('v',1)|unique(true)|unique(attribute='n')|max(attribute='v')|min(attribute='n')
sort(attribute='v')|sort(attribute='n,v')|sort(case_sensitive=true)|tojson(ensure_ascii=true)|tojson(separators=(',',':'))|tojson(sort_keys=true)|tojson(indent='\\t')
urlize
""".replace("\n", "|").strip("|")
# `|` within an argument is not a separator.
ANY = [form.replace("\x00", "|") for form in ANY.replace("'|'", "'\x00'").split("|")]
LAZY = {"map", "select", "reject", "selectattr", "rejectattr", "batch", "slice", "unique", "reverse", "items"}
TESTS = """boolean callable defined divisibleby(3) eq(1) equalto('abc') escaped even false float ge(1) greaterthan(2) gt('a') in([1,'abc',2.5])
integer iterable le(2) lessthan(3) lower lt('b') mapping ne(none) none number odd sameas(none) sameas(true) sequence string true undefined upper""".split()

# Methods of texts, each with lists of arguments.
STR = {
    "capitalize": [""], "casefold": [""], "lower": [""], "upper": [""], "title": [""], "swapcase": [""],
    "center": ["9", "10,'*'", "3"], "ljust": ["8", "8,'-'"], "rjust": ["8", "8,'-'"], "zfill": ["6", "0"],
    "count": ["'a'", "''", "'b',1", "'a',-5,-1", "'a',1,3"], "find": ["'b'", "'',2", "'x',-4", "'a',0,2"], "rfind": ["'a'", "''", "'b',1,4"],
    "index": ["'a'", "'b',1"], "rindex": ["'c'"], "startswith": ["'a'", "('x','a')", "'b',1", "''", "1"], "endswith": ["'c'", "('z','\\n')", "'b',0,2"],
    "expandtabs": ["", "4", "0"], "format": ["1,2", "'x'", "a=1"], "isalnum": [""], "isalpha": [""], "isascii": [""], "isdecimal": [""], "isdigit": [""],
    "isidentifier": [""], "islower": [""], "isnumeric": [""], "isprintable": [""], "isspace": [""], "istitle": [""], "isupper": [""],
    "join": ["['a','b']", "'xyz'", "[]", "[1]"], "strip": ["", "'a \\n'", "none"], "lstrip": ["", "'ab{'"], "rstrip": ["", "'cn\\n'"],
    "partition": ["' '", "'b'", "''"], "rpartition": ["' '", "'.'"], "removeprefix": ["'a'", "''"], "removesuffix": ["'c'", "'\\n'"],
    "replace": ["'a','b'", "'','.'", "'a','',1", "'\\n','\\\\n',-1"], "split": ["", "'\\n'", "' '", "none,1", "sep='.',maxsplit=1", "''"],
    "rsplit": ["", "'.',1", "none,1", "'a'"], "splitlines": ["", "true", "keepends=true"], "translate": ["{97:'Z',98:none}"], "encode": [],
}
MISC = """@[1:] ;; @[:-1] ;; @[::2] ;; @[::-1] ;; @[-2:] ;; @[0] ;; @[-1] ;; @ ~ 'x' ;; @ + @ ;; @ * 2 ;; @ - 1 ;; @ // 2 ;; @ % 3 ;; @ ** 2 ;; @ / 4
-(@) ;; not @ ;; @ == @ ;; @ < 2 ;; @ >= 'a' ;; @ in [1,'abc'] ;; 'a' in @ ;; @ and 1 ;; @ or 'o' ;; @ if @ else 'E' ;; @.n ;; @['n'] ;; @.get('a') ;; @.get('b',7)
@.keys()|list ;; @.values()|list ;; @.items()|list ;; @.copy() ;; @.index(1) ;; @.count(1) ;; @.index('a') ;; @.append(1) ;; @.pop() ;; (@|float).is_integer()
@.bit_length() ;; dict(@) ;; dict(a=@) ;; range(@)|list ;; namespace(a=@).a ;; '%s' % @ ;; '%r' % @ ;; '%5.1f|%-4d|%x' % (@|float,@,@) ;; '%s %s' % (@,@)
'{:>8}|{!r}'.format(@,@) ;; cycler('a',@).next() ;; joiner(@)() ;; [@,@] ;; (@,) ;; {'k':@} ;; 'a' 'b' ~ @ ;; @ is defined and @ ;; @|string|length
@|list|tojson ;; @|map('string')|join('+') ;; @|join|upper ;; @|map(attribute=0)|join ;; @|sort(attribute='0') ;; @|join('',0) ;; @|first|upper ;; @|e|replace('a','<')
@|default(@)|trim ;; @|items|map('first')|list ;; '%s-%s'|format(@|string, 2) ;; '{a}'.format(a=@) ;; 'x'.join(@) ;; @|int * 2 + 1 ;; (@|string)[1:3] ;; @|safe + '<'
@|escape ~ '<' ;; @|tojson|length ;; @|dictsort|map('last')|list ;; @|batch(2)|map('join','-')|list ;; @|groupby('n')|map('first')|list"""


def forms():
    """Expressions in which `@` stands for a value, with the values that they are for."""
    everything = list(range(len(VALUES)))
    for form in ANY:
        name = form.split("(")[0]
        tail = "|list" if name in LAZY else ""
        if name in {"batch", "slice"}:
            tail = "|map('list')|list"
        yield f"@|{form}{tail}", everything
    for test in TESTS:
        yield f"@ is {test}", everything
    for name, arguments in STR.items():
        for argument in arguments:
            yield f"@.{name}({argument})", list(range(N_TEXTS)) + [N_TEXTS, len(VALUES) - 1]
    for form in MISC.replace("\n", ";;").split(";;"):
        yield form.strip(), everything


def rendered(source):
    try:
        text = _compile_jinja_template("{{ " + source + " }}").render(messages=[])
    except Exception:
        return None
    return None if " object at 0x" in text or "<generator" in text or "built-in" in text or "bound method" in text else text


def main():
    rng = random.Random(20)
    found = []
    for form, places in forms():
        results = [(i, rendered(form.replace("@", f"({VALUES[i]})"))) for i in places]
        good = [pair for pair in results if pair[1] is not None]
        bad = [pair for pair in results if pair[1] is None]
        few = rng.sample(good, min(len(good), 16)) + rng.sample(bad, min(len(bad), 4))
        # A text that is long says no more than a short one.
        few = sorted(pair for pair in few if len(pair[1] or "") < 160)
        found.append([form, *[part for pair in few for part in pair]])
    with open(sys.argv[1], "w", encoding="utf-8") as out:
        lines = ",\n".join(json.dumps(form, ensure_ascii=True, separators=(",", ":")) for form in found)
        out.write('{"values":' + json.dumps(VALUES, separators=(",", ":")) + ',\n"forms":[\n' + lines + "\n]}\n")
    print(len(found), "forms,", sum(len(form) // 2 for form in found), "cases")


if __name__ == "__main__":
    main()
