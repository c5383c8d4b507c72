//! Splits a text into words, the pieces that no merge crosses.
//!
//! A pre-tokenizer is a list of steps; each splits the pieces of the step before and looks no further than its piece.
//! Everything runs in time linear in the text: the look-ahead `\s+(?!\S)` of the published patterns, which leaves the
//! last character of a run of white space to the next word, is a rule here and not part of a pattern.

use std::ops::Range;
use std::sync::LazyLock;

use regex_automata::{Input, meta::Regex, util::syntax};
use serde::Deserialize;

use super::Error;

#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum SplitRule {
    /// Matches of the pattern and the text between matches are words.
    Cut(String),
    /// As `Cut`, with `\s+(?!\S)|\s+` as the last alternatives of the pattern.
    CutSpaces(String),
    /// As `CutSpaces`, but a run of white space is split into pieces of these lengths, longest first. The last length
    /// is 1.
    CutSpaceRuns {
        pattern: String,
        lengths: Vec<usize>,
    },
    /// Numbers are split into groups of three from the right; text before a number stays with its first group.
    GroupNumbers,
}

impl SplitRule {
    pub(super) fn pattern_mut(&mut self) -> Option<&mut String> {
        match self {
            Self::Cut(pattern) | Self::CutSpaces(pattern) | Self::CutSpaceRuns { pattern, .. } => {
                Some(pattern)
            }
            Self::GroupNumbers => None,
        }
    }
}

/// The steps of a pre-tokenizer, compiled.
#[derive(Debug)]
pub(super) struct Splitter(Vec<CompiledRule>);

#[derive(Debug)]
enum CompiledRule {
    Cut(Regex),
    /// White space is the second pattern of the regex. Without lengths, runs are not split.
    Spaces(Regex, Vec<usize>),
    GroupNumbers(Regex),
}

impl Splitter {
    pub(super) fn new(steps: &[SplitRule]) -> Result<Self, Error> {
        let ready = steps.iter().map(|step| {
            let spaces = |pattern: &str| compile(&[pattern, r"\s+"]);
            Ok(match step {
                SplitRule::Cut(pattern) => CompiledRule::Cut(compile(&[pattern])?),
                SplitRule::CutSpaces(pattern) => CompiledRule::Spaces(spaces(pattern)?, Vec::new()),
                SplitRule::CutSpaceRuns { pattern, lengths } => {
                    CompiledRule::Spaces(spaces(pattern)?, lengths.clone())
                }
                SplitRule::GroupNumbers => CompiledRule::GroupNumbers(compile(&[r"\p{N}+"])?),
            })
        });
        ready.collect::<Result<_, Error>>().map(Self)
    }

    /// Whether a pattern matches the empty text, which would loop forever.
    #[cfg(test)]
    pub(super) fn matches_nothing(&self) -> bool {
        self.0.iter().any(|step| match step {
            CompiledRule::Cut(regex)
            | CompiledRule::Spaces(regex, _)
            | CompiledRule::GroupNumbers(regex) => regex.is_match(""),
        })
    }

    /// The words of `text`, in order, without gaps; none is empty.
    pub(super) fn split(&self, text: &str) -> Vec<Range<usize>> {
        let mut words = Vec::new();
        if !text.is_empty() {
            words.push(0..text.len());
        }
        for step in &self.0 {
            let mut cuts = WordCuts {
                words: Vec::with_capacity(words.len()),
                offset: 0,
                last: 0,
            };
            for word in words {
                cuts.offset = word.start;
                cuts.last = 0;
                let piece = &text[word];
                step.run(piece, &mut cuts);
                cuts.at(piece.len());
            }
            words = cuts.words;
        }
        words
    }
}

/// The version of Unicode that defines letters, marks, numbers, punctuation and symbols: that of llama.cpp's tables.
/// Newer characters belong to none of these, so that ids do not change with the tables of the regex library.
const UNICODE_AGE: &str = "15.1";

/// The categories, and what they are replaced with: the same without characters that are newer than [`UNICODE_AGE`].
/// Those are few; a class of all that are not takes longer to build than the rest of a pattern.
static CATEGORIES: LazyLock<Vec<(String, String)>> = LazyLock::new(|| {
    let categories = ["L", "M", "N", "P", "S", "Cf"].into_iter();
    let narrowed = categories.map(|category| {
        let all = format!(r"\p{{{category}}}");
        let aged = format!(r"[{all}--\p{{Age={UNICODE_AGE}}}]");
        // A class that does not parse stays as it is, and the pattern around it is refused with its name.
        let newer = syntax::parse(&aged).map_or(aged, |newer| newer.to_string());
        let narrowed = format!("[{all}--{newer}]");
        (all, narrowed)
    });
    narrowed.collect()
});

/// The pattern with every category restricted to the characters of [`UNICODE_AGE`].
fn with_age(pattern: &str) -> String {
    let narrow =
        |pattern: String, (all, narrowed): &(String, String)| pattern.replace(all, narrowed);
    CATEGORIES.iter().fold(pattern.to_owned(), narrow)
}

pub(super) fn compile(patterns: &[&str]) -> Result<Regex, Error> {
    let aged: Vec<String> = patterns.iter().map(|pattern| with_age(pattern)).collect();
    Regex::new_many(&aged).map_err(|source| Error::Pattern {
        pattern: patterns[0].to_owned(),
        source: Box::new(source),
    })
}

/// The words found so far, and the last cut in the current piece.
struct WordCuts {
    words: Vec<Range<usize>>,
    offset: usize,
    last: usize,
}

impl WordCuts {
    /// Ends a word at `end`, a position in the current piece.
    fn at(&mut self, end: usize) {
        if end > self.last {
            self.words.push(self.offset + self.last..self.offset + end);
            self.last = end;
        }
    }
}

impl CompiledRule {
    fn run(&self, piece: &str, cuts: &mut WordCuts) {
        match self {
            Self::Cut(regex) => {
                for found in regex.find_iter(piece) {
                    cuts.at(found.start());
                    cuts.at(found.end());
                }
            }
            Self::Spaces(regex, lengths) => cut_with_spaces(regex, lengths, piece, cuts),
            Self::GroupNumbers(regex) => {
                for found in regex.find_iter(piece) {
                    group_number(&piece[found.range()], found.start(), cuts);
                }
            }
        }
    }
}

fn cut_with_spaces(regex: &Regex, lengths: &[usize], piece: &str, cuts: &mut WordCuts) {
    let mut input = Input::new(piece);
    while let Some(found) = regex.search(&input) {
        let mut end = found.end();
        if found.pattern().as_usize() == 1 {
            end = found.start() + keep_spaces(&piece[found.range()], end == piece.len(), lengths);
        }
        cuts.at(found.start());
        cuts.at(end);
        input.set_start(end);
    }
}

/// The number of bytes of a run of white space that become a word.
fn keep_spaces(run: &str, at_end: bool, lengths: &[usize]) -> usize {
    let last = run.chars().next_back().map_or(0, char::len_utf8);
    let most = match run.len() - last {
        _ if at_end => run.len(),
        0 => last,
        most => most,
    };
    if lengths.is_empty() {
        return most;
    }
    let starts = |n: usize| {
        run[..most]
            .char_indices()
            .map(|(at, c)| at + c.len_utf8())
            .nth(n - 1)
    };
    lengths.iter().find_map(|&n| starts(n)).unwrap_or(most)
}

fn group_number(number: &str, start: usize, cuts: &mut WordCuts) {
    let digits = number.chars().count();
    for (index, (at, c)) in (1..).zip(number.char_indices()) {
        if (digits - index).is_multiple_of(3) {
            cuts.at(start + at + c.len_utf8());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_cut_into_words() {
        let named = |name| {
            let row = super::super::pretokenizer::named(name).expect("the name is known");
            row.steps.clone()
        };
        let spaces = |pattern: &str| vec![SplitRule::CutSpaces(pattern.to_owned())];
        let words = || spaces(r" ?\p{L}+| ?[^\s\p{L}]+");
        let lines = || spaces(r"\p{L}+|\s*[\r\n]+");
        let runs = || {
            vec![SplitRule::CutSpaceRuns {
                pattern: r"\p{L}+".to_owned(),
                lengths: vec![4, 2, 1],
            }]
        };
        let numbers = || vec![SplitRule::GroupNumbers];
        // A later step sees only its piece.
        let two = [vec![SplitRule::Cut(r"\n".to_owned())], spaces(r" ?\p{L}+")].concat();
        let cases: &[(Vec<SplitRule>, &str, &[&str])] = &[
            (
                named("superbpe"),
                "a b 1234567 c",
                &["a b ", "1", "234", "567", " c"],
            ),
            (
                named("mmbert"),
                "▁a▁▁b\n\n▁c",
                &["▁a", "▁", "▁b", "\n\n", "▁c"],
            ),
            (named("whitespace"), "ab  c", &["ab", "  ", "c"]),
            // A run of spaces leaves its last one to the next word.
            (words(), "a  b", &["a", " ", " b"]),
            (words(), "a b  ", &["a", " b", "  "]),
            (words(), "\t\t\tb", &["\t\t", "\t", "b"]),
            (words(), "\u{a0}\u{a0}b", &["\u{a0}", "\u{a0}", "b"]),
            (words(), "", &[]),
            // White space that the pattern takes is taken whole.
            (lines(), " \n \nb", &[" \n \n", "b"]),
            (lines(), " \n  b", &[" \n", " ", " ", "b"]),
            (runs(), "a       b", &["a", "    ", "  ", " ", "b"]),
            (runs(), "     ", &["    ", " "]),
            (numbers(), "1234567", &["1", "234", "567"]),
            (numbers(), "a123456b", &["a123", "456", "b"]),
            (two, "a  \n b", &["a", "  ", "\n", " b"]),
        ];
        for (steps, text, expected) in cases {
            let splitter = Splitter::new(steps).expect("the patterns of the tests compile");
            let words = splitter.split(text).into_iter().map(|w| &text[w]);
            assert_eq!(words.collect::<Vec<_>>(), *expected, "{steps:?}: {text:?}");
        }
    }
}
