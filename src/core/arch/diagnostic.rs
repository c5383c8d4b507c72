//! Problems of a definition: the place, the message, and advice.
//!
//! A definition reports all its problems at once: checks collect [`Diagnostic`] values and continue. Rendering shows
//! file:line:column, the source line with a caret, and a hint. This module is independent of the language, so it serves
//! every TOML file of the project.

use std::collections::BTreeSet;
use std::fmt;
use std::ops::Range;

use annotate_snippets::{AnnotationKind, Level, Renderer, Snippet, renderer::DecorStyle};

const MAX_LISTED: usize = 48;
/// Maximum number of problems that are shown with their lines; the number of further ones is shown.
const SHOWN: usize = 40;
/// Number of problems after which checks stop: the time for the advice of each problem grows with the number of names.
pub(crate) const MANY: usize = 500;

/// A range of bytes of a source text.
pub type Span = Range<usize>;

/// A value and its place in the source.
#[derive(Clone, Debug, PartialEq)]
pub struct Spanned<T> {
    pub value: T,
    /// The place in the source.
    pub span: Span,
}

impl<T> Spanned<T> {
    /// Joins a value with its place.
    pub fn new(value: T, span: Span) -> Self {
        Self { value, span }
    }
}

/// One problem of a definition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostic {
    /// The place in the source.
    pub span: Span,
    /// The problem: the found and the expected value.
    pub message: String,
    /// The remedy, if there is one.
    pub help: Option<String>,
}

impl Diagnostic {
    /// A problem without advice.
    pub fn new(span: Span, message: impl Into<String>) -> Self {
        Self {
            span,
            message: message.into(),
            help: None,
        }
    }

    /// Adds advice.
    #[must_use]
    pub fn with_help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }

    /// The problem of an unknown name, with the known names, the nearest first.
    pub fn unknown<'a>(
        span: Span,
        what: &str,
        found: &str,
        known: impl IntoIterator<Item = &'a str>,
    ) -> Self {
        let mut known: BTreeSet<&str> = known.into_iter().collect();
        let problem = Self::new(span, format!("unknown {what} `{found}`"));
        // A long list is not shown, since it does not help.
        let is_listed = !known.is_empty() && known.len() <= MAX_LISTED;
        let near = nearest(found, known.iter().copied());
        let meant = near.map(|near| format!("did you mean `{near}`?"));
        let first = near.and_then(|near| known.take(near));
        let names: Vec<&str> = first.into_iter().chain(known).collect();
        let listed = is_listed.then(|| format!("known: {}", names.join(", ")));
        let advice: Vec<String> = meant.into_iter().chain(listed).collect();
        match advice.is_empty() {
            true => problem,
            false => problem.with_help(advice.join(" ")),
        }
    }
}

/// Maximum length in bytes of a name that is compared with others: the cost of a comparison grows with the length.
const MAX_NAME: usize = 128;

/// The known name nearest to `found`, if it is near enough.
pub fn nearest<'a>(found: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    if found.len() > MAX_NAME {
        return None;
    }
    let n_chars = found.chars().count();
    let limit = (n_chars * 2 / 5).max(1);
    // The distance is at least the difference in length.
    let is_possible = |name: &str| {
        name.chars().count().abs_diff(n_chars) <= limit
            || name.starts_with(found)
            || found.starts_with(name)
    };
    known
        .into_iter()
        .filter(|name| is_possible(name))
        .map(|name| (strsim::osa_distance(found, name), name))
        .filter(|(distance, name)| {
            *distance <= limit
                || (found.len() >= 3 && (name.starts_with(found) || found.starts_with(*name)))
        })
        .min()
        .map(|(_, name)| name)
}

/// All problems of one source text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostics {
    path: String,
    source: String,
    problems: Vec<Diagnostic>,
}

impl Diagnostics {
    /// The problems of a text, sorted by their places.
    pub fn new(
        path: impl Into<String>,
        source: impl Into<String>,
        mut problems: Vec<Diagnostic>,
    ) -> Self {
        problems.sort_by_key(|p| (p.span.start, p.span.end));
        problems.dedup();
        Self {
            path: path.into(),
            source: source.into(),
            problems,
        }
    }

    /// The file of the text.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The problems, in the order of the text.
    pub fn problems(&self) -> &[Diagnostic] {
        &self.problems
    }

    /// The first problems with source lines and carets, and the number of further problems; `styled` adds terminal
    /// colours.
    pub fn render(&self, styled: bool) -> String {
        let renderer = if styled {
            Renderer::styled()
        } else {
            Renderer::plain()
        }
        .decor_style(DecorStyle::Ascii);
        let mut out = String::new();
        for problem in self.problems.iter().take(SHOWN) {
            let span = self.visible(&problem.span);
            let snippet = Snippet::source(self.source.as_str())
                .path(self.path.as_str())
                .annotation(AnnotationKind::Primary.span(span));
            let mut group = Level::ERROR
                .primary_title(problem.message.as_str())
                .element(snippet);
            if let Some(help) = &problem.help {
                group = group.element(Level::HELP.message(help.as_str()));
            }
            if !out.is_empty() {
                out.push_str("\n\n");
            }
            out.push_str(&renderer.render(&[group]));
        }
        match self.problems.len() {
            n if n >= MANY => out.push_str(&format!("\n\nand at least {} more", n - SHOWN)),
            n if n > SHOWN => out.push_str(&format!("\n\nand {} more", n - SHOWN)),
            _ => {}
        }
        out
    }

    /// The span, clamped to the source and widened to character borders.
    fn visible(&self, span: &Span) -> Span {
        let text = self.source.as_str();
        let mut start = span.start.min(text.len());
        while !text.is_char_boundary(start) {
            start -= 1;
        }
        let mut end = span.end.clamp(start, text.len());
        while !text.is_char_boundary(end) {
            end += 1;
        }
        start..end
    }
}

impl fmt::Display for Diagnostics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.render(false))
    }
}

impl std::error::Error for Diagnostics {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_name_is_one_slip_away() {
        let known = ["kv_heads", "heads", "rope", "cache"];
        assert_eq!(nearest("kv_haeds", known), Some("kv_heads"));
        assert_eq!(nearest("ropes", known), Some("rope"));
        assert_eq!(nearest("colour", known), None);
    }

    #[test]
    fn a_problem_shows_place_line_and_advice() {
        let source = "name = \"x\"\nropes = 1\n";
        let problem = Diagnostic::unknown(11..16, "key", "ropes", ["rope"]);
        let text = Diagnostics::new("a.toml", source, vec![problem]).to_string();
        assert!(text.contains("a.toml:2:1"), "{text}");
        assert!(text.contains("^^^^^"), "{text}");
        assert!(text.contains("did you mean `rope`?"), "{text}");
    }

    #[test]
    fn many_problems_are_counted() {
        let problem = |at: usize| Diagnostic::new(at..at + 1, format!("problem {at}"));
        let shown = |n: usize| {
            let text = Diagnostics::new("a", "x".repeat(n), (0..n).map(problem).collect());
            text.to_string()
        };
        assert!(!shown(SHOWN).contains("more"));
        assert!(shown(SHOWN + 3).ends_with("\n\nand 3 more"));
        assert_eq!(shown(SHOWN + 3).matches("problem").count(), SHOWN);
        assert!(shown(MANY).ends_with(&format!("and at least {} more", MANY - SHOWN)));
    }

    #[test]
    fn a_span_outside_the_text_is_survived() {
        let text = Diagnostics::new("a", "ä", vec![Diagnostic::new(1..900, "m")]).to_string();
        assert!(text.contains("a:1"), "{text}");
    }
}
