//! Operators against the engine's own and Jinja2's, and templates that mean harm.

use std::time::{Duration, Instant};

use minijinja::{Environment, Value, context};
use serde_json::{Map, json};

use super::*;

/// All of it takes under a second each, but not on a machine that is busy.
const PATIENCE: Duration = Duration::from_secs(10);

pub(super) fn render(source: &str) -> Result<String, RenderError> {
    let template = ChatTemplate::new(source).expect("the template compiles");
    let messages = json!([
        {"role": "user", "content": "Hello <b>"},
        {"role": "assistant", "content": "Hi"},
    ]);
    template.render(&RenderInput {
        messages: &messages,
        tools: None,
        documents: None,
        add_generation_prompt: true,
        continue_final_message: false,
        kwargs: &Map::new(),
        bos_token: "<s>",
        eos_token: "</s>",
        now: Moment::from_unix_seconds(0),
    })
}

/// Renders with the engine alone, without any rewriting.
fn plain(source: &str) -> String {
    let mut env = Environment::new();
    env.set_syntax(syntax());
    let messages: Value = [
        context! { role => "user", content => "Hello <b>" },
        context! { role => "assistant", content => "Hi" },
    ]
    .into_iter()
    .collect();
    let variables = context! { messages, add_generation_prompt => true, bos_token => "<s>" };
    env.render_str(source, variables)
        .unwrap_or_else(|error| panic!("{source}: {error:#}"))
}

/// The rewritten template must give what the template itself gives.
#[track_caller]
fn same(source: &str) {
    assert_eq!(render(source), Ok(plain(source)), "{source}");
}

#[track_caller]
fn gives(source: &str, expected: &str) {
    assert_eq!(render(source).as_deref(), Ok(expected), "{source}");
}

#[test]
fn precedence_is_the_engines() {
    for expression in [
        "1 + 2 - 3 + 4",
        "1 - 2 - 3",
        "10 - 2 * 3 + 4 / 2",
        "7 // 2 + 7 % 4 * 2 - 8 / 4 * 3",
        "2 * 3 ** 2 + 1",
        "2 ** 3 * 2",
        "-2 ** 2 + -3",
        "- 1 - - 1",
        "1 ~ 2 + 3 ~ 4 * 5",
        "'a' + 2 ~ 3 + 'b'",
        "8 / 2 ~ 6 / 3",
        "(8 / 2 + 6 / 3) ~ 1 / 1",
        "'a' + 6 / 3 ~ 1 / 1",
        "2*3/4*5//2*2",
        "(1 + 2) * (3 - (4 - 5))",
        "1+1 == 2 and not 2-1 > 3*1 or false",
        "1 + 1 < 2 + 2 < 3 + 3",
        "1 + 1 in [2, 3] + [4]",
        "1 + 1 not in [2] + [4]",
        "1 + 2 if 1 + 1 == 2 else 3 + 4",
        "1 + (2 if false else 3) + 4",
        "1 - 1 is number",
        "(1 + 2) is divisibleby 3",
        "1 + 2 is number or 3",
        "5 is not divisibleby 2 and 1 + 1 is eq(2)",
        "1.5 + 1e-1 - 1.5e+1 + 1E2",
        "0x1e+1",
        "1_000 + 1",
        "true + 1",
    ] {
        same(&format!("{{{{ [{expression}] }}}}"));
        same(&format!("{{{{{expression}}}}}"));
    }
}

#[test]
fn operands_of_every_form_are_kept_whole() {
    for expression in [
        "'a' + 'b' 'c' + \"d\"",
        "'+' + \" - ~ * [1:2] %} }} \" ~ '\\'+'",
        "'a' + 'b' | upper + 'c'",
        "'a' + ('b' + 'c') | upper",
        "'a,b' | replace(',' + '', ';' ~ '') + 'c'",
        "messages[0 + 1].content + messages[1 - 1]['role']",
        "messages[-1].role + messages[:1][0].role",
        "messages[0]['con' + 'tent'][1:2 + 1] + 'abcdef'[::2] + 'abc'[1 - 2:]",
        "'abcdef'[1:][1:][1:] + 'x'",
        "-[1, 2, 3][1:][0] + 1",
        "{'a' + 'b': 1 + 1, 'c': [1 + 2, 3 - 1]}",
        "{'a': {'b': 1}}.a.b + 1",
        "(1 + 1, 2 - 1)",
        "[1, 2][0] - [1, 2][1]",
        "[[1, 2], [3]][0][1:] + [4]",
        "range(1 + 1, 5 - 1) | list + [9]",
        "dict(a=1 + 2, b=3 ~ 4).b + '!'",
        "[1, 2] | map('string') | join(', ' + '') ~ '.'",
        "messages | map(attribute='ro' + 'le') | list | length + 1",
        "messages[0].role == 'us' + 'er'",
        "'x' if messages[0]['role'] != 'user' else messages[1]['role'] ~ '!'",
        "'Hel' in messages[0].content + ''",
        "missing is defined or 1 - 1 == 0",
    ] {
        same(&format!("{{{{ {expression} }}}}"));
        same(&format!("{{%- set x = {expression} -%}} [{{{{- x }}}}]"));
    }
}

#[test]
fn statements_are_rewritten_where_they_hold_expressions() {
    for source in [
        "{% for m in messages + [1] %}{{ loop.index0 + 1 }}{{ loop.index - 1 }},{% endfor %}",
        "{% for m in messages[1:] if 'H' in m.content %}{{ m.role ~ loop.index }}{% endfor %}",
        "{% for k, v in {'a': 1 + 1} | items | list if v - 1 %}{{ k + 'x' }}{% else %}-{% endfor %}",
        "{% for x in [1, [2]] + [3] recursive %}{{ x if x is number else loop(x + [4]) }}{% endfor %}",
        "{% set ns = namespace(n=1 + 1, t='') %}{% for m in messages %}{% set ns.n = ns.n + loop.index - 3 %}\
         {% set ns.t = ns.t ~ m.role + '/' %}{% endfor %}{{ ns.n }}{{ ns.t }}",
        "{% macro f(a, b=1 + 1, c='x' ~ 'y') %}{{ a + b }}{{ c }}{% endmacro %}{{ f(1 + 1) + f(a=2 - 1, b=3) }}",
        "{% macro f() %}[{{ caller('a' + 'b') }}]{% endmacro %}{% call(x) f() %}{{ x + 'c' }}{% endcall %}",
        "{% with a = 1 + 1, b = 2 - 1 %}{{ a - b }}{% endwith %}",
        "{% if 1 + 1 == 2 %}a{% elif 2 - 1 %}b{% endif %}",
        "{% if -1 + 1 %}a{% elif - 1 - 1 %}b{% endif %}",
        "{% set a, b = 1 + 1, 2 - 1 %}{{ a - b }}",
        "{% set x %}a{{ 1 + 1 }}{% endset %}{{ x + 'b' }}",
        "{% set x | replace('a', 'b') %}a{% endset %}{{ x }}",
        "{% filter replace('a' + '', 'b') %}aa{% endfilter %}",
        "{#- {{ 1 + 1 }} #}{% raw %}{{ 1 + 1 }} {% endrawx %} {{ ' {%- endraw -%}  {{ 1 + 1 }}",
        "{{ messages\n  [0]\n .role\n + 'x' }}",
        "{{-1-1-}} x {%- if 1-1 -%} y {%- else +%}\n z {% endif %}",
    ] {
        same(source);
    }
}

#[test]
fn literal_text_keeps_its_white_space() {
    let long = "a long piece of text";
    for (opener, closer) in [
        ("{% ", " %}"),
        ("{%- ", " -%}"),
        ("{%+ ", " +%}"),
        ("{%- ", " %}"),
    ] {
        same(&format!(
            "  {opener}if 1{closer}\n  {long}  \n  {opener}endif{closer}\n\n  {long}\n"
        ));
        let (opener, closer) = (opener.replace('%', "{"), closer.replace('%', "}"));
        same(&format!(
            "  {opener}1{closer}\n  {long}  \n  {opener}2{closer}\n\n  {long}\n"
        ));
        let (opener, closer) = (opener.replace("{{", "{#"), closer.replace("}}", "#}"));
        same(&format!(
            "  {opener}1{closer}\n  {long}  \n  {opener}2{closer}\n\n  {long}\n"
        ));
    }
    same(&format!(
        "{{% raw -%}}\n  {long} {{%+ endraw %}}\n  {long}\n"
    ));
}

/// Expected texts by Jinja2 3.1.6.
#[test]
fn markup_escapes_what_it_is_added_to() {
    gives("{{ '<&>' + 'x'|safe }}", "&lt;&amp;&gt;x");
    gives("{{ '<a>'|safe + '\"\\'<' + '<' }}", "<a>&#34;&#39;&lt;&lt;");
    gives("{{ ('<a>'|safe ~ '<') + '<' }}", "<a><<");
    gives("{{ '<a>'|safe|trim + '<' }}", "<a>&lt;");
    gives("{{ '<a>'|safe|string * 2 + '<' }}", "<a><a>&lt;");
    gives("{{ '<a>'|safe|upper + '<' }}", "<A>&lt;");
    gives("{{ ('<a>'|safe).strip() + '<' }}", "<a>&lt;");
    gives("{{ ('<a>'|safe).replace('a', '&') }}", "<&amp;>");
    gives("{{ '<a>'|safe|replace('a', '&') }}", "<&>");
    gives("{{ '<'|e + '<' }}", "&lt;&lt;");
    gives("{{ {'a': '<'}|tojson + '<' }}", "{\"a\": \"<\"}<");
    gives("{% set x %}{{ '<'|safe }}{% endset %}{{ x + '<' }}", "<<");
}

#[test]
fn python_adds_and_repeats() {
    gives(
        "{{ [1] + [2] }} {{ (1,) + (2,) }} {{ [1] * 2 }} {{ 2 * (1,) }}",
        "[1, 2] (1, 2) [1, 1] (1, 1)",
    );
    gives(
        "{{ 'ab' * 2 }}{{ 2 * 'c' }}{{ 'd' * -1 }}{{ 'e' * true }}",
        "ababcce",
    );
    gives(
        "{% set x | replace(old='a', new='b') %}a{% endset %}{{ x }}",
        "b",
    );
    gives("{{ 1 + 1.0 }} {{ 3 * 1.5 }} {{ true - 1 }}", "2.0 4.5 0");
    for source in [
        "{{ 'a' + 1 }}",
        "{{ [1] + (2,) }}",
        "{{ none + 1 }}",
        "{{ 'a' * 1.0 }}",
        "{{ missing + 'a' }}",
    ] {
        assert!(
            matches!(render(source), Err(RenderError::Runtime { line: 1, .. })),
            "{source}"
        );
    }
}

/// Each must end by itself, soon, with an error; on a thread with the stack that tests get.
#[track_caller]
fn is_refused(what: &str, source: &str) {
    let started = Instant::now();
    let result = ChatTemplate::new(source).map(|_| render(source));
    let elapsed = started.elapsed();
    assert!(!matches!(result, Ok(Ok(_))), "{what} was rendered");
    if let Ok(Err(error)) = result {
        let is_limit = matches!(error, RenderError::Limit(_) | RenderError::Runtime { .. });
        assert!(is_limit, "{what}: {error:?}");
    }
    assert!(elapsed < PATIENCE, "{what} took {elapsed:?}");
}

#[test]
fn hostile_data_is_refused() {
    let forever = "{% for i in range(100000) %}{% for j in range(1000) %}";
    let end = "{% endfor %}{% endfor %}";
    let ns = "{% set ns = namespace(x='aaaaaaaaaaaaaaaa', l=[1], d={}) %}";
    let megabyte = "{% set big = 'a' * 1000000 %}";
    for (what, body) in [
        ("doubling by ~", "{% set ns.x = ns.x ~ ns.x %}"),
        ("doubling by +", "{% set ns.x = ns.x + ns.x %}"),
        (
            "doubling by capture",
            "{% set y %}{{ ns.x }}{{ ns.x }}{% endset %}{% set ns.x = y %}",
        ),
        ("doubling lists", "{% set ns.l = ns.l + ns.l %}"),
        ("doubling by join", "{% set ns.x = [ns.x, ns.x]|join %}"),
        (
            "doubling by the method join",
            "{% set ns.x = ns.x.join(['a', 'b', 'c']) %}",
        ),
        (
            "doubling by replace",
            "{% set ns.x = ns.x|replace('a', 'aa') %}",
        ),
        (
            "doubling by the method replace",
            "{% set ns.x = ns.x.replace('a', 'aa') %}",
        ),
        (
            "doubling by format",
            "{% set ns.x = '%s%s'|format(ns.x, ns.x) %}",
        ),
        (
            "doubling by the method format",
            "{% set ns.x = '{0}{0}'.format(ns.x) %}",
        ),
        (
            "doubling by sum",
            "{% set ns.x = [ns.x, ns.x]|sum(start='') %}",
        ),
        ("doubling by tojson", "{% set ns.x = [ns.x, ns.x]|tojson %}"),
        (
            "doubling by printing",
            "{% set ns.x = [ns.x, ns.x]|string %}",
        ),
        (
            "doubling by escaping",
            "{% set ns.x = ns.x|replace('a', '&')|e|replace('m', '&') %}",
        ),
        ("doubling by slices", "{% set ns.x = (ns.x * 2)[1:] %}"),
        ("a tree of lists", "{% set ns.l = [ns.l, ns.l] %}"),
        ("nesting lists", "{% set ns.l = [ns.l] %}"),
        ("nesting tuples", "{% set ns.l = (ns.l,) %}"),
        ("nesting mappings", "{% set ns.d = {'a': ns.d} %}"),
        ("nesting batches", "{% set ns.l = ns.l|batch(1)|list %}"),
        (
            "a namespace in itself",
            "{% set ns.x = [ns] %}{{ ns == ns }}",
        ),
        ("keeping texts", "{% set ns.l = ns.l + [big ~ i] %}"),
        (
            "keeping literals",
            "{% macro m() %}0123456789abcdef0123456789abcdef{% endmacro %}{% set ns.x %}{% for k in range(90000) %}{{ m() }}{% endfor %}{% endset %}{% set ns.l = ns.l + [ns.x] %}",
        ),
        ("searching", "{{ 'b' in big }}"),
        ("comparing", "{{ big ~ '' == big ~ '' }}"),
        ("comparing kept texts", "{{ big == big }}"),
        ("counting characters", "{{ big[i] }}{{ big[-1] }}"),
        ("slicing", "{{ big[:-1]|length }}"),
        ("upper", "{{ big|upper|length }}"),
        ("splitting", "{{ big.split('a')|length }}"),
        ("listing characters", "{{ big|list|length }}"),
        ("sorting", "{{ (big|list|sort)|length }}"),
        ("printing much", "{{ big }}"),
        (
            "iterating over a text",
            "{% for c in big %}{% break %}{% endfor %}",
        ),
        ("measuring", "{{ big|length }}"),
        (
            "finding keys",
            "{% set d = {big: 1} %}{{ d[big] }}{{ messages[0].get(big) }}",
        ),
        ("indexing a range", "{{ range(100000)[i] }}"),
        ("adding up", "{{ range(100000)|sum }}"),
        ("unpacking", "{{ '{}'.format(*range(100000)) }}"),
        ("picking the largest", "{{ [big ~ 1, big ~ 2]|max|length }}"),
        ("running on", "{{ i }}"),
        ("running on without output", ""),
    ] {
        is_refused(what, &format!("{ns}{megabyte}{forever}{body}{end}"));
    }
}

#[test]
fn hostile_single_steps_are_refused() {
    for (what, source) in [
        ("a wide text", "{{ 'a' * 10**9 }}"),
        ("a wide text, turned", "{{ 10**9 * 'a' }}"),
        ("a long list", "{{ ([1] * 10**9)|length }}"),
        ("a long tuple", "{{ ((1,) * 10**9)|length }}"),
        ("lists of lists", "{{ ([[1] * 10**5] * 10**5)|string }}"),
        ("a long range", "{{ range(10**12)|list }}"),
        ("padding", "{{ 'a'.center(10**9) }}"),
        (
            "padding to the right",
            "{{ 'a'.ljust(60000000) ~ 'a'.ljust(60000000) ~ 'a'.ljust(60000000) }}",
        ),
        ("a wide field", "{{ '%999999999d'|format(1) }}"),
        ("a field as wide as told", "{{ '%*d'|format(10**9, 1) }}"),
        (
            "a wide field of the method",
            "{{ '{:999999999}'.format(1) }}",
        ),
        (
            "a field of the method as wide as told",
            "{{ '{:{}}'.format(1, 10**9) }}",
        ),
        ("many fields", "{{ ('{0:99999}' * 10000).format(1) }}"),
        (
            "many arguments",
            "{{ ('{0}' * 10000).format('a' * 100000) }}",
        ),
        ("filling a batch", "{{ [1]|batch(10**9, 'x')|length }}"),
        ("many slices", "{{ [1]|slice(10**9)|length }}"),
        ("indenting", "{{ ('\\n' * 100000)|indent(100000) }}"),
        (
            "indented JSON",
            "{{ ([1] * 100000)|tojson(indent='a' * 100000) }}",
        ),
        (
            "separated JSON",
            "{{ ([1] * 100000)|tojson(separators=('a' * 100000, '')) }}",
        ),
        ("wide tabs", "{{ ('\\t' * 10**7).expandtabs(10**9) }}"),
        ("a wide join", "{{ range(100000)|join('a' * 100000) }}"),
        (
            "replacing nothing",
            "{{ ('a' * 100000).replace('', 'b' * 100000) }}",
        ),
        ("powers", "{{ 10 ** 10 ** 10 }}"),
        ("dates", "{{ strftime_now('%c' * 10**8) }}"),
        (
            "a macro that calls itself",
            "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        ),
        (
            "a macro that calls itself in an operand",
            "{% macro m(x) %}{{ ('a' + ('b' + (m([x]) + 'c'))) }}{% endmacro %}{{ m(1) }}",
        ),
        (
            "a loop that calls itself",
            "{% for x in [1] recursive %}{{ loop([x]) }}{% endfor %}",
        ),
        (
            "a template that includes itself",
            "{% include 'chat template' %}",
        ),
        (
            "a template that imports itself",
            "{% import 'chat template' as m %}",
        ),
    ] {
        is_refused(what, source);
    }
}

/// Some of these the engine could take; none may end the process.
#[test]
fn hostile_syntax_does_no_harm() {
    let n = 900;
    let many = |text: &str| text.repeat(n);
    for (what, source) in [
        ("sums", format!("{{{{ 1{} }}}}", many(" + 1"))),
        ("differences", format!("{{{{ 1{} }}}}", many(" - 1"))),
        (
            "sums and quotients",
            format!("{{{{ 1{} }}}}", " + 1 / 1".repeat(n / 2)),
        ),
        (
            "products and quotients",
            format!("{{{{ 1{} }}}}", " * 1 / 1".repeat(n / 2)),
        ),
        ("powers", format!("{{{{ 1{} }}}}", many(" ** 1"))),
        ("concatenations", format!("{{{{ 1{} }}}}", many(" ~ 1"))),
        ("alternatives", format!("{{{{ 0{} }}}}", many(" or 0"))),
        ("comparisons", format!("{{{{ 1{} }}}}", many(" < x"))),
        ("negations", format!("{{{{ {}1 }}}}", many("not "))),
        ("signs", format!("{{{{ {}1 }}}}", many("- "))),
        ("attributes", format!("{{{{ x{} }}}}", many(".a"))),
        ("filters", format!("{{{{ x{} }}}}", many("|string"))),
        ("tests", format!("{{{{ x{} }}}}", many(" is string"))),
        ("subscripts", format!("{{{{ x{} }}}}", "[0]".repeat(n / 2))),
        (
            "variable subscripts",
            format!("{{{{ x{} }}}}", "[i]".repeat(n / 2)),
        ),
        ("slices", format!("{{{{ x{} }}}}", "[1:]".repeat(n / 2))),
        (
            "nested slices",
            format!("{{{{ {}1{} }}}}", many("x["), many("]")),
        ),
        ("calls", format!("{{{{ x{} }}}}", "()".repeat(n / 2))),
        (
            "nested calls",
            format!("{{{{ {}1{} }}}}", "f(".repeat(50), ")".repeat(50)),
        ),
        (
            "nested sums",
            format!("{{{{ {}1{} }}}}", "1 + (".repeat(60), ")".repeat(60)),
        ),
        ("brackets", format!("{{{{ {}1{} }}}}", many("("), many(")"))),
        ("lists", format!("{{{{ {}1{} }}}}", many("["), many("]"))),
        (
            "mappings",
            format!("{{{{ {}1{} }}}}", many("{1:"), many("}")),
        ),
        ("open brackets", format!("{{{{ {}", many("("))),
        ("closed brackets", format!("{{{{ {}", many(")"))),
        ("targets", format!("{{% set {}a", many("("))),
        (
            "choices",
            format!("{{{{ 1{} }}}}", " if x else 1".repeat(n / 2)),
        ),
        (
            "one long tag",
            format!("{{{{ 1{} }}}}", "+1".repeat(50_000)),
        ),
        (
            "a long list",
            format!("{{{{ [{}] }}}}", "1,".repeat(50_000)),
        ),
        (
            "blocks",
            format!("{}{}", many("{% if 1 %}"), many("{% endif %}")),
        ),
        (
            "elif",
            format!("{{% if 0 %}}{}{{% endif %}}", many("{% elif 0 %}")),
        ),
        (
            "assignments",
            format!("{}{{{{ x == x }}}}", "{% set x = [x] %}".repeat(20_000)),
        ),
        ("scopes", "{% with %}".repeat(1000)),
        (
            "an evading raw block",
            format!(
                "{{% raw %}}{{% endrawx %}}{{{{ ' {{% endraw %}}{{{{ 1{} }}}}",
                "+1".repeat(50_000)
            ),
        ),
        (
            "stray operators",
            "{{ + - * / ~ % ** }}{{ ] [ : }}{% set = %}{% %}{{ }}{{ 1 + }}{{ | }}{{ . }}"
                .to_owned(),
        ),
    ] {
        let started = Instant::now();
        if ChatTemplate::new(&source).is_ok() {
            let _ = render(&source);
        }
        assert!(started.elapsed() < PATIENCE, "{what}");
    }
}
