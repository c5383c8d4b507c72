//! Markdown of an answer as HTML that is safe to show: tables, code with classes for its tokens, math as MathML, links.
//!
//! What a model writes is hostile input. No script, style, event handler, form, frame or remote picture is left, and links open elsewhere.
//! Cost: linear in the text; a block of code is highlighted for a bounded time, what is left is shown plain.

use std::collections::{HashMap, HashSet};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use pulldown_cmark::{Alignment, CodeBlockKind, Event, Options, Parser, Tag, TagEnd, html};
use syntect::html::{ClassStyle, ClassedHTMLGenerator};
use syntect::parsing::SyntaxSet;

static SYNTAXES: LazyLock<SyntaxSet> = LazyLock::new(SyntaxSet::load_defaults_newlines);

/// The classes of highlighted code begin with it.
const STYLE: ClassStyle = ClassStyle::SpacedPrefixed { prefix: "hl-" };
/// How long the code blocks of one text may be looked at.
const HIGHLIGHT_TIME: Duration = Duration::from_millis(250);
/// Longer lines of code are shown plain, in bytes.
const LONGEST_LINE: usize = 2000;
/// Longer formulas are shown as their source, in bytes.
const LONGEST_FORMULA: usize = 4000;
/// More braces within each other are shown as their source.
const DEEPEST_FORMULA: usize = 60;
/// Quotes, lists and their items within each other.
const DEEPEST_LIST: usize = 40;
/// Definitions of macros could grow without bound.
const MACROS: [&str; 7] = [
    "def",
    "gdef",
    "edef",
    "let",
    "newcommand",
    "renewcommand",
    "providecommand",
];

fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    out
}

/// `\(x\)` and `\[x\]`, which models write for math, as `$x$` and `$$x$$`; code stays as it is.
fn with_dollars(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut fence: Option<&str> = None;
    for line in text.split_inclusive('\n') {
        let start = line.trim_start();
        let mark = ["```", "~~~"].into_iter().find(|m| start.starts_with(m));
        match (fence, mark) {
            (None, Some(m)) => fence = Some(m),
            (Some(open), Some(m)) if open == m => fence = None,
            (None, None) => {
                let mut rest = line;
                let mut ticks = 0;
                while let Some(at) = rest.find(['`', '\\']) {
                    out.push_str(&rest[..at]);
                    rest = &rest[at..];
                    let n = rest.len() - rest.trim_start_matches('`').len();
                    if n > 0 {
                        ticks = if ticks == 0 {
                            n
                        } else if ticks == n {
                            0
                        } else {
                            ticks
                        };
                        out.push_str(&rest[..n]);
                        rest = &rest[n..];
                        continue;
                    }
                    let next = rest[1..].chars().next();
                    let replaced = match next {
                        Some('(' | ')') if ticks == 0 => Some("$"),
                        Some('[' | ']') if ticks == 0 => Some("$$"),
                        _ => None,
                    };
                    let n = 1 + next.map_or(0, char::len_utf8);
                    out.push_str(replaced.unwrap_or(&rest[..n]));
                    rest = &rest[n..];
                }
                out.push_str(rest);
                continue;
            }
            _ => {}
        }
        out.push_str(line);
    }
    out
}

/// LaTeX as MathML; its source as code where it cannot be read or could cost too much.
fn formula(source: &str, is_display: bool) -> String {
    let depth = source.bytes().scan(0_usize, |depth, b| {
        match b {
            b'{' => *depth += 1,
            b'}' => *depth = depth.saturating_sub(1),
            _ => {}
        }
        Some(*depth)
    });
    let nests = source
        .matches("\\left")
        .count()
        .max(source.matches("\\begin").count())
        .max(depth.max().unwrap_or(0));
    let mut commands = source.split('\\').skip(1).map(|c| {
        c.split(|c: char| !c.is_ascii_alphabetic())
            .next()
            .unwrap_or_default()
    });
    let defines = commands.any(|c| MACROS.contains(&c));
    let plain = || format!("<code>{}</code>", escaped(source));
    if source.len() > LONGEST_FORMULA || nests > DEEPEST_FORMULA || defines {
        return plain();
    }
    let storage = pulldown_latex::Storage::new();
    let events: Vec<_> = pulldown_latex::Parser::new(source, &storage).collect();
    if events.iter().any(Result::is_err) {
        return plain();
    }
    let display_mode = if is_display {
        pulldown_latex::config::DisplayMode::Block
    } else {
        pulldown_latex::config::DisplayMode::Inline
    };
    let config = pulldown_latex::RenderConfig {
        display_mode,
        ..Default::default()
    };
    let mut out = String::new();
    match pulldown_latex::mathml::push_mathml(&mut out, events.into_iter(), config) {
        Ok(()) => out,
        Err(_) => plain(),
    }
}

/// Code with classes for its tokens, until the deadline.
fn code(text: &str, language: &str, deadline: Instant) -> String {
    let language = language.split([' ', ',', '{']).next().unwrap_or_default();
    let label = if language.is_empty() {
        String::new()
    } else {
        format!(" class=\"language-{}\"", escaped(language))
    };
    let mut inner = None;
    if let Some(syntax) = SYNTAXES
        .find_syntax_by_token(language)
        .filter(|_| text.lines().all(|l| l.len() <= LONGEST_LINE))
    {
        let mut generator = ClassedHTMLGenerator::new_with_class_style(syntax, &SYNTAXES, STYLE);
        let mut lines = text.split_inclusive('\n');
        let is_done = lines.all(|line| {
            Instant::now() < deadline
                && generator
                    .parse_html_for_line_which_includes_newline(line)
                    .is_ok()
        });
        inner = is_done.then(|| generator.finalize());
    }
    format!(
        "<pre><code{label}>{}</code></pre>\n",
        inner.unwrap_or_else(|| escaped(text))
    )
}

/// Tags and attributes that are left. Everything else is removed, `script` and `style` with what is in them.
static CLEANER: LazyLock<ammonia::Builder<'static>> = LazyLock::new(|| {
    let text = "a abbr b blockquote br code dd del details div dl dt em h1 h2 h3 h4 h5 h6 hr i input ins kbd li mark ol p pre q s samp small span strong sub \
                summary sup table tbody td tfoot th thead tr u ul";
    let math = "math menclose merror mfrac mi mmultiscripts mn mo mover mpadded mphantom mprescripts mroot mrow ms mspace msqrt mstyle msub msubsup msup \
                mtable mtd mtext mtr munder munderover none semantics";
    let tags: HashSet<&str> = text
        .split_whitespace()
        .chain(math.split_whitespace())
        .collect();
    let of_math = "accent accentunder columnalign columnlines columnspacing depth dir display displaystyle fence form height largeop linethickness lspace \
                   mathvariant maxsize minsize movablelimits notation rowlines rowspacing rspace scriptlevel separator stretchy symmetric voffset width";
    let of_math: HashSet<&str> = of_math.split_whitespace().collect();
    let mut attributes: HashMap<&str, HashSet<&str>> = math
        .split_whitespace()
        .map(|tag| (tag, of_math.clone()))
        .collect();
    attributes.insert("a", HashSet::from(["href", "title"]));
    attributes.insert("code", HashSet::from(["class"]));
    attributes.insert("span", HashSet::from(["class"]));
    attributes.insert("ol", HashSet::from(["start"]));
    attributes.insert("td", HashSet::from(["align"]));
    attributes.insert("th", HashSet::from(["align"]));
    attributes.insert("input", HashSet::from(["type", "checked", "disabled"]));
    let mut cleaner = ammonia::Builder::new();
    cleaner
        .tags(tags)
        .tag_attributes(attributes)
        .generic_attributes(HashSet::new())
        .url_schemes(HashSet::from(["http", "https", "mailto"]))
        .url_relative(ammonia::UrlRelative::Deny)
        .link_rel(Some("noopener noreferrer nofollow"))
        .set_tag_attribute_value("a", "target", "_blank")
        .set_tag_attribute_value("input", "disabled", "")
        .set_tag_attribute_value("input", "type", "checkbox")
        .attribute_filter(|tag, name, value| {
            let is_ours = |class: &str| class.starts_with("hl-") || class.starts_with("language-");
            let keeps = name != "class"
                || (matches!(tag, "code" | "span") && value.split_whitespace().all(is_ours));
            keeps.then(|| value.into())
        });
    cleaner
});

/// Renders a text.
pub(crate) fn render(text: &str) -> String {
    let source = with_dollars(text);
    let options = Options::ENABLE_TABLES
        | Options::ENABLE_STRIKETHROUGH
        | Options::ENABLE_TASKLISTS
        | Options::ENABLE_FOOTNOTES
        | Options::ENABLE_MATH;
    // Loaded once, not within the time of a text.
    LazyLock::force(&SYNTAXES);
    let deadline = Instant::now() + HIGHLIGHT_TIME;
    let mut block: Option<(String, String)> = None;
    let mut depth = 0_usize;
    // Of the table at hand: how its columns are aligned, the tag of its cells, and the column of the next one.
    let (mut alignments, mut cell, mut column) = (Vec::new(), "td", 0_usize);
    let events = Parser::new_ext(&source, options).filter_map(|event| match event {
        // Quotes and lists deeper than anybody reads are not shown as such: the cost of a tree grows with the square of its depth.
        Event::Start(Tag::BlockQuote(_) | Tag::List(_) | Tag::Item) => {
            depth += 1;
            (depth <= DEEPEST_LIST).then_some(event)
        }
        Event::End(TagEnd::BlockQuote(_) | TagEnd::List(_) | TagEnd::Item) => {
            depth -= 1;
            (depth < DEEPEST_LIST).then_some(event)
        }
        Event::Start(Tag::CodeBlock(kind)) => {
            let language = match kind {
                CodeBlockKind::Fenced(language) => language.into_string(),
                CodeBlockKind::Indented => String::new(),
            };
            block = Some((language, String::new()));
            None
        }
        Event::End(TagEnd::CodeBlock) => block
            .take()
            .map(|(language, text)| Event::Html(code(&text, &language, deadline).into())),
        Event::Text(text) if block.is_some() => {
            if let Some((_, code)) = &mut block {
                code.push_str(&text);
            }
            None
        }
        Event::Start(Tag::Table(of_columns)) => {
            alignments = of_columns;
            Some(Event::Start(Tag::Table(Vec::new())))
        }
        Event::Start(Tag::TableHead | Tag::TableRow) => {
            let is_head = event == Event::Start(Tag::TableHead);
            (cell, column) = (if is_head { "th" } else { "td" }, 0);
            Some(event)
        }
        // In the attribute that is left, not in a style.
        Event::Start(Tag::TableCell) => {
            let side = match alignments.get(column) {
                Some(Alignment::Left) => "left",
                Some(Alignment::Center) => "center",
                Some(Alignment::Right) => "right",
                Some(Alignment::None) | None => "",
            };
            column += 1;
            Some(match side {
                "" => event,
                side => Event::InlineHtml(format!("<{cell} align=\"{side}\">").into()),
            })
        }
        Event::InlineMath(latex) => Some(Event::InlineHtml(formula(&latex, false).into())),
        Event::DisplayMath(latex) => Some(Event::InlineHtml(formula(&latex, true).into())),
        // No picture is fetched from elsewhere: its text and address are a link.
        Event::Start(Tag::Image {
            link_type,
            dest_url,
            title,
            id,
        }) => Some(Event::Start(Tag::Link {
            link_type,
            dest_url,
            title,
            id,
        })),
        Event::End(TagEnd::Image) => Some(Event::End(TagEnd::Link)),
        // A line of an answer ends where the model ended it.
        Event::SoftBreak => Some(Event::HardBreak),
        event => Some(event),
    });
    let mut out = String::with_capacity(text.len() * 2);
    html::push_html(&mut out, events);
    CLEANER.clean(&out).to_string()
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::render;

    #[test]
    fn tables_code_math_and_links_are_rendered() {
        let cases = [
            (
                "| a | b | c | d |\n|--|--:|:-:|:--|\n| 1 | 2 | 3 | 4 |\n| 5 | 6 |",
                vec![
                    "<table>",
                    "<th>a</th><th align=\"right\">b</th><th align=\"center\">c</th><th align=\"left\">d</th>",
                    "<td>1</td><td align=\"right\">2</td><td align=\"center\">3</td><td align=\"left\">4</td>",
                    "<td>5</td><td align=\"right\">6</td>",
                ],
            ),
            ("- [x] done", vec!["checkbox", "checked"]),
            (
                "```python\ndef f(x):\n    return x\n```",
                vec!["language-python", "hl-keyword", "hl-function"],
            ),
            (
                "```unknown\na < b\n```",
                vec!["language-unknown", "a &lt; b"],
            ),
            ("Euler: \\(e^{i\\pi}\\)", vec!["<math", "<msup>", "π"]),
            ("\\[\\frac{a}{b}\\]", vec!["display=\"block\"", "<mfrac>"]),
            (
                "$$\n\\begin{pmatrix}1&2\\\\3&4\\end{pmatrix}\n$$",
                vec!["<mtable>"],
            ),
            ("`\\(x\\)`", vec!["<code>\\(x\\)</code>"]),
            ("```\n\\(x\\)\n```", vec!["\\(x\\)"]),
            ("it costs $5 and $6", vec!["it costs $5 and $6"]),
            ("$\\unknown{x}$", vec!["<code>\\unknown{x}</code>"]),
            (
                "[m](https://ok.example \"t\")",
                vec!["href=\"https://ok.example\"", "noopener", "_blank"],
            ),
            (
                "![a picture](https://x.example/y.png)",
                vec!["<a href=\"https://x.example/y.png\"", "a picture"],
            ),
            ("a\nb", vec!["<br>"]),
        ];
        for (text, expected) in cases {
            let html = render(text);
            for part in expected {
                assert!(html.contains(part), "{text:?}: {part:?} is not in {html:?}");
            }
        }
    }

    #[test]
    fn hostile_answers_are_harmless() {
        let cases = [
            "<script>alert(1)</script>",
            "<b onclick=alert(1)>x</b>",
            "<img src=x onerror=alert(1)>",
            "![x](https://x.example/y.png)",
            "[l](javascript:alert(1)) [l](data:text/html,x) [l](vbscript:x)",
            "<a href=\"java\tscript:alert(1)\">x</a>",
            "<math><mtext><table><mglyph><style><!--</style><img title=\"--&gt;&lt;img src=1 onerror=alert(1)&gt;\">",
            "<svg><style><img src=x onerror=alert(1)></style></svg>",
            "$\\text{<script>alert(1)</script>}$ $\\href{javascript:alert(1)}{x}$ $\\class{evil}{x}$ $\\style{background:url(x)}{x}$",
            "<form action=https://x.example><input type=password name=p><button>go</button></form>",
            "<iframe src=https://x.example></iframe><object data=x></object><embed src=x><base href=x><meta http-equiv=refresh>",
            "<p style=\"position:fixed\" class=\"panel\" id=\"send\">x</p>",
            "```\"><script>alert(1)</script>\nx\n```",
        ];
        for text in cases {
            let html = render(text);
            for tag in html
                .split('<')
                .skip(1)
                .map(|t| t.split('>').next().unwrap_or(t))
            {
                let name = tag.split([' ', '/']).next().unwrap_or_default();
                let is_bad = [
                    "script", "img", "style", "svg", "form", "button", "iframe", "object", "embed",
                    "base", "meta",
                ]
                .contains(&name);
                let has_bad = [
                    " on",
                    "javascript:",
                    "data:",
                    "vbscript:",
                    "style=",
                    "id=",
                    "panel",
                    "password",
                    "evil",
                ]
                .iter()
                .any(|b| tag.contains(b));
                assert!(!is_bad && !has_bad, "{text:?} leaves <{tag}> in {html:?}");
            }
        }
    }

    #[test]
    fn macros_and_deep_formulas_are_shown_as_their_source() {
        let deep = format!("${}x{}$", "{".repeat(1000), "}".repeat(1000));
        for text in ["$\\def\\a{\\a\\a}\\a$", "$\\newcommand{\\b}{x}\\b$", &deep] {
            assert!(render(text).contains("<code>"), "{text:.40}");
        }
        assert_eq!(
            render("$x \\leftarrow y$, $\\left(x\\right)$, $a \\leq b$")
                .matches("<math")
                .count(),
            3
        );
    }

    #[test]
    fn the_cost_of_hostile_texts_is_bounded() {
        let cases = [
            ("quotes", ">".repeat(20_000)),
            ("brackets", "[".repeat(50_000)),
            ("emphasis", "*a ".repeat(20_000)),
            ("tags", "<b>".repeat(20_000)),
            ("dollars", "$x".repeat(20_000)),
            ("lists", "- ".repeat(20_000)),
            (
                "code",
                format!(
                    "```python\n{}\n```",
                    ("((((((((".repeat(100) + "\n").repeat(300)
                ),
            ),
        ];
        for (case, text) in cases {
            let start = Instant::now();
            assert!(!render(&text).is_empty(), "{case}");
            let time = start.elapsed();
            assert!(time.as_secs() < 8, "{case}: {time:?}");
        }
    }
}
