//! Faults of grammars, and translations against a naive reading of the rules.

use super::super::Error;
use super::parse::{Expr, GbnfRules, parse};
use super::*;
use crate::util::measure::thread_time;
use crate::util::test_rows::rows;

/// A set of places in a text, from before its first character to after its last: one bit each.
type Positions = u128;

fn positions(set: Positions) -> impl Iterator<Item = usize> {
    let next = |rest: &Positions| Some(rest & (rest - 1)).filter(|rest| *rest != 0);
    let rests = std::iter::successors(Some(set).filter(|set| *set != 0), next);
    rests.map(|rest| rest.trailing_zeros() as usize)
}

/// What a grammar says of one text, by tables over its parts: no automata, no lexemes.
pub(in crate::grammar) struct NaiveMatcher<'a> {
    rules: &'a GbnfRules,
    text: Vec<char>,
    /// For each rule and each start, the ends of what it matches.
    ends: Vec<Vec<Positions>>,
    /// For each rule and each start, whether the rest is a prefix of something it matches.
    begins: Vec<Vec<bool>>,
    productive: Vec<bool>,
}

impl<'a> NaiveMatcher<'a> {
    pub(in crate::grammar) fn new(rules: &'a GbnfRules, text: &str) -> Self {
        let text: Vec<char> = text.chars().collect();
        let (n, size) = (rules.bodies.len(), text.len() + 1);
        assert!(size <= Positions::BITS as usize, "a text of {size} places");
        let mut this = Self {
            rules,
            text,
            ends: vec![vec![0; size]; n],
            begins: vec![vec![false; size]; n],
            productive: vec![false; n],
        };
        while this.improve() {}
        this
    }

    pub(in crate::grammar) fn is_whole(&self) -> bool {
        self.ends[self.rules.root][0] >> self.text.len() & 1 == 1
    }

    pub(in crate::grammar) fn is_beginning(&self) -> bool {
        self.begins[self.rules.root][0]
    }

    fn improve(&mut self) -> bool {
        let mut is_changed = false;
        for (rule, body) in self.rules.bodies.iter().enumerate() {
            if !self.productive[rule] && self.is_productive(body) {
                self.productive[rule] = true;
                is_changed = true;
            }
        }
        // From the last start, since a match depends on those of its parts, which start later.
        for from in (0..=self.text.len()).rev() {
            for (rule, body) in self.rules.bodies.iter().enumerate() {
                let ends = self.ends_of(body, from);
                let begins = self.is_begun(body, from);
                is_changed |= ends != self.ends[rule][from] || begins != self.begins[rule][from];
                self.ends[rule][from] = ends;
                self.begins[rule][from] = begins;
            }
        }
        is_changed
    }

    fn is_productive(&self, expr: &Expr) -> bool {
        match expr {
            Expr::Class(_) => true,
            Expr::Rule(rule) => self.productive[*rule],
            Expr::Seq(all) => all.iter().all(|part| self.is_productive(part)),
            Expr::Alt(all) => all.iter().any(|part| self.is_productive(part)),
            Expr::Repeat(inner, min, _) => *min == 0 || self.is_productive(inner),
        }
    }

    fn fits(&self, expr: &Expr, at: usize) -> bool {
        let (Expr::Class(chars), Some(c)) = (expr, self.text.get(at)) else {
            return false;
        };
        let code = u32::from(*c);
        chars
            .ranges()
            .iter()
            .any(|(low, high)| *low <= code && code <= *high)
    }

    fn ends_of(&self, expr: &Expr, from: usize) -> Positions {
        match expr {
            Expr::Class(_) if self.fits(expr, from) => 1 << (from + 1),
            Expr::Class(_) => 0,
            Expr::Rule(rule) => self.ends[*rule][from],
            Expr::Alt(all) => all
                .iter()
                .fold(0, |ends, part| ends | self.ends_of(part, from)),
            Expr::Seq(all) => all
                .iter()
                .fold(1 << from, |reached, part| self.step(reached, part)),
            Expr::Repeat(inner, min, max) => {
                let (mut reached, mut out) = (1 << from, 0);
                // More rounds than there are characters only add empty ones.
                let rounds = max
                    .unwrap_or(u32::MAX)
                    .min(min + self.text.len() as u32 + 1);
                for round in 0..=rounds {
                    if round >= *min {
                        out |= reached;
                    }
                    reached = self.step(reached, inner);
                }
                out
            }
        }
    }

    fn step(&self, reached: Positions, part: &Expr) -> Positions {
        positions(reached).fold(0, |ends, start| ends | self.ends_of(part, start))
    }

    fn is_begun(&self, expr: &Expr, from: usize) -> bool {
        let len = self.text.len();
        let is_begun_in =
            |reached, part| positions(reached).any(|start| self.is_begun(part, start));
        let is_at_end = |reached: Positions| reached >> len & 1 == 1;
        let mut reached = 1 << from;
        match expr {
            Expr::Class(_) => from == len || from + 1 == len && self.fits(expr, from),
            Expr::Rule(rule) => self.begins[*rule][from],
            Expr::Alt(all) => all.iter().any(|part| self.is_begun(part, from)),
            Expr::Seq(all) => {
                for (i, part) in all.iter().enumerate() {
                    let can_end = all[i + 1..].iter().all(|part| self.is_productive(part));
                    if can_end && is_begun_in(reached, part) {
                        return true;
                    }
                    reached = self.step(reached, part);
                }
                is_at_end(reached)
            }
            Expr::Repeat(inner, min, max) => {
                let rounds = max.unwrap_or(u32::MAX).min(min + len as u32 + 1);
                for round in 0..rounds {
                    let can_end = round + 1 >= *min || self.is_productive(inner);
                    if can_end && is_begun_in(reached, inner) {
                        return true;
                    }
                    if round >= *min && is_at_end(reached) {
                        return true;
                    }
                    reached = self.step(reached, inner);
                }
                is_at_end(reached) && rounds >= *min
            }
        }
    }
}

#[test]
fn the_naive_reading_reads() {
    let text = "root ::= (\"a\" root \"b\")? | [x-z]{2,3}";
    let rules = parse(text).expect("a grammar");
    for (text, is_beginning, is_whole) in [
        ("", true, true),
        ("a", true, false),
        ("aabb", true, true),
        ("aab", true, false),
        ("aba", false, false),
        ("axyzb", true, true),
        ("axb", false, false),
        ("xyzz", false, false),
    ] {
        let naive = NaiveMatcher::new(&rules, text);
        let found = (naive.is_beginning(), naive.is_whole());
        assert_eq!(found, (is_beginning, is_whole), "{text}");
    }
}

/// Grammars that are refused, the place and the message; `⏎` is a line end.
const REFUSED: &str = r#"
∅ ¦ 1:1 ¦ there is no rule `root`
main ::= "a" ¦ 1:13 ¦ there is no rule `root`
root ::= a⏎⏎a ::= b "x"⏎ ¦ 3:7 ¦ there is no rule `b`
root ::= "ab ¦ 1:10 ¦ the string has no closing `"`
root ::= [ab ¦ 1:10 ¦ the class has no closing `]`
root ::= [] ¦ 1:10 ¦ the class has no character
root ::= [^] ¦ 1:10 ¦ the class has no character
root ::= [^\x00-\U0010FFFF] ¦ 1:10 ¦ the class has no character
root ::= [z-a] ¦ 1:11 ¦ `z` comes after `a`
root ::= "\q" ¦ 1:11 ¦ there is no escape `\q`
root ::= "\x4" ¦ 1:11 ¦ expected 2 hexadecimal digits
root ::= "\uD800" ¦ 1:11 ¦ U+D800 is not a character
root ::= ("a"⏎ ¦ 2:1 ¦ expected `)`, found the end
root ::= "a") ¦ 1:13 ¦ expected the end of the line, found `)`
root ::= * ¦ 1:10 ¦ there is nothing to repeat
root ::= "a"{,3} ¦ 1:14 ¦ expected a number, found `,`
root ::= "a"{3,2} ¦ 1:13 ¦ the larger count comes first
root ::= "a"{2001} ¦ 1:14 ¦ more than 2000 repetitions
root ::= "a"{99999999999} ¦ 1:14 ¦ more than 2000 repetitions
root ::= "a"{2 ¦ 1:15 ¦ expected `}`, found the end
root = "a" ¦ 1:6 ¦ expected `::=`, found `=`
root ::= "a"⏎root ::= "b" ¦ 2:1 ¦ duplicate rule `root`
root ::= "a"⏎"b" ¦ 2:1 ¦ expected the name of a rule, found `"`
root ::= <think> ¦ 1:10 ¦ tokens by name or number are not supported
é ::= "a" ¦ 1:1 ¦ expected the name of a rule, found `é`
"#;

#[test]
fn faults_tell_their_place() {
    let refused = |text: &str, place: &str, expected: &str| match to_lark(text) {
        Err(Error::Gbnf {
            line,
            column,
            message,
        }) => {
            assert_eq!(
                (format!("{line}:{column}"), message.as_str()),
                (place.to_owned(), expected),
                "{text}"
            );
        }
        other => panic!("{text}: {other:?}"),
    };
    for [text, place, message] in rows(REFUSED) {
        refused(&text, &place, &message);
    }
    let deep = format!("root ::= {}", "(".repeat(100_000));
    refused(&deep, "1:60", "more than 50 groups in each other");
    let again = format!("root ::= \"a\"{}", "*".repeat(100_000));
    refused(&again, "1:63", "too many repetitions of each other");
}

#[test]
fn rules_end_with_their_line_unless_something_is_open() {
    let text = "# a comment\nroot ::= # first\n  a | # second\n  (\"b\"\n  \"c\")  # third\r\na::=\"x\"\n\n";
    let rules = parse(text).expect("a grammar");
    for (text, is_whole) in [("x", true), ("bc", true), ("b", false)] {
        assert_eq!(
            NaiveMatcher::new(&rules, text).is_whole(),
            is_whole,
            "{text}"
        );
    }
}

#[test]
fn escapes_and_classes_stand_for_characters() {
    let text = r#"root ::= "\x41\u00e9\U0001F600\t\r\n\\\"\[\]" [\]a\-c-e-] [^a-z\n] ."#;
    let rules = parse(text).expect("a grammar");
    let start = "Aé😀\t\r\n\\\"[]";
    for (rest, is_whole) in [
        ("]A\n", true),
        ("-é日", true),
        ("dZx", true),
        ("bZx", false),
        ("aax", false),
        ("a\nx", false),
    ] {
        let found = NaiveMatcher::new(&rules, &format!("{start}{rest}")).is_whole();
        assert_eq!(found, is_whole, "{rest:?}");
    }
}

#[test]
fn notations_are_told_apart() {
    for text in [
        "root ::= \"a\"",
        "# note: x\n\n// more\n my-rule::=a",
        "a ::=\n b",
    ] {
        assert!(is_gbnf(text), "{text}");
    }
    for text in [
        "start: \"::=\"",
        "start: a\na: \"x\"",
        "%llguidance {}\nstart: \"a\"",
        "",
        "::=",
    ] {
        assert!(!is_gbnf(text), "{text}");
    }
}

#[test]
fn regular_parts_become_lexemes_where_nothing_is_lost() {
    let n_lexemes = |text: &str| lexemes::lex(&parse(text).expect("a grammar")).lexemes.len();
    assert_eq!(
        n_lexemes("root ::= word (\" \" word)*\nword ::= [a-z]+ \"x\""),
        1,
        "all regular"
    );
    // The text of a string is one lexeme, not one for each character.
    let nested = "root ::= \"[\" (str | root) \"]\"\nstr ::= \"\\\"\" [^\"]* \"\\\"\"";
    assert_eq!(n_lexemes(nested), 3);
    // `[a-z]+` would swallow the `x`.
    let greedy = "root ::= \"(\" root \")\" | [a-z]+ tail\ntail ::= \"x\" root?";
    assert!(n_lexemes(greedy) > 3);
}

/// Rules of many kinds of parts, four times as many of which take no more than nine times as long.
#[test]
fn translating_takes_time_in_proportion() {
    type Make = fn(usize) -> String;
    let kinds: [(&str, Make); 4] = [
        ("alternatives", |n| {
            let all: Vec<String> = (0..n).map(|i| format!("\"w{i}\"")).collect();
            format!("root ::= {}", all.join(" | "))
        }),
        ("alternatives of rules", |n| {
            let all: Vec<String> = (0..n).map(|i| format!("r{i}")).collect();
            let rules: String = (0..n)
                .map(|i| format!("r{i} ::= \"w{i}\" root?\n"))
                .collect();
            format!("root ::= {}\n{rules}", all.join(" | "))
        }),
        ("a sequence", |n| {
            let all: Vec<String> = (0..n).map(|i| format!("[a-z] \"w{i}\"")).collect();
            format!("root ::= {}", all.join(" "))
        }),
        ("a chain", |n| {
            let rules: String = (0..n)
                .map(|i| format!("a{i} ::= \"x\" a{}\n", i + 1))
                .collect();
            format!("root ::= a0\n{rules}a{n} ::= \"x\"\n")
        }),
    ];
    for (name, make) in kinds {
        let least = |text: &str, tries: usize| {
            let time = |_| {
                let before = thread_time();
                to_lark(text).expect("a sound grammar");
                thread_time() - before
            };
            (0..tries).map(time).min().unwrap_or_default()
        };
        let (small, large) = (make(150), make(600));
        let (a, b) = (least(&small, 3), least(&large, 2));
        let is_fine = b <= 9 * a.max(std::time::Duration::from_millis(3));
        assert!(
            is_fine || least(&large, 5) <= 9 * least(&small, 8),
            "{name}: {a:?}, {b:?}"
        );
    }
}
