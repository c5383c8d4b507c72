//! Writes a grammar over lexemes as Lark text.
//!
//! Characters are written by number, so nothing needs escaping. Groups in rules become rules of
//! their own, because the library limits their nesting.

use std::fmt::Write;

use super::super::lark_regex::counts;
use super::automaton::Automaton;
use super::chars::CharSet;
use super::lexemes::{Lexed, Node};
use super::parse::{Expr, GbnfRules};

pub(super) fn lark(lexed: &Lexed, grammar: &GbnfRules) -> String {
    let mut writer = Writer {
        is_nullable: lexed
            .lexemes
            .iter()
            .map(|expr| Automaton::new(expr, &grammar.bodies).is_nullable)
            .collect(),
        out: format!("start: r{}\n", lexed.root),
        n_groups: 0,
    };
    let mut rules: Vec<_> = lexed.rules.iter().collect();
    rules.sort_by_key(|(rule, _)| **rule);
    for (rule, node) in rules {
        let body = writer.body(node);
        writer.line(&format!("r{rule}"), &body);
    }
    for (i, expr) in lexed.lexemes.iter().enumerate() {
        let mut body = String::from("/");
        regex(expr, &grammar.bodies, &mut body);
        body.push('/');
        if writer.is_nullable[i] {
            // A lexeme never matches the empty text. Where it may be empty, the rule that uses it says so.
            body.push_str(" & /(?s:.)+/");
        }
        writer.line(&format!("T{i}"), &body);
    }
    writer.out
}

struct Writer {
    is_nullable: Vec<bool>,
    out: String,
    n_groups: usize,
}

impl Writer {
    fn line(&mut self, name: &str, body: &str) {
        self.out.push_str(name);
        self.out.push_str(": ");
        self.out.push_str(body);
        self.out.push('\n');
    }

    fn body(&mut self, node: &Node) -> String {
        match node {
            Node::Alt(all) => {
                let all: Vec<_> = all.iter().map(|part| self.sequence(part)).collect();
                all.join(" | ")
            }
            _ => self.sequence(node),
        }
    }

    fn sequence(&mut self, node: &Node) -> String {
        match node {
            Node::Seq(all) if all.is_empty() => "\"\"".into(),
            Node::Seq(all) => {
                let all: Vec<_> = all.iter().map(|part| self.atom(part)).collect();
                all.join(" ")
            }
            _ => self.atom(node),
        }
    }

    fn atom(&mut self, node: &Node) -> String {
        match node {
            Node::Lexeme(i) if self.is_nullable[*i] => format!("T{i}?"),
            Node::Lexeme(i) => format!("T{i}"),
            Node::Rule(rule) => format!("r{rule}"),
            Node::Repeat(inner, min, max) => {
                format!("{}{}", self.group(inner), counts(*min, *max))
            }
            Node::Seq(_) | Node::Alt(_) => self.group(node),
        }
    }

    /// A node as a name; a node without a name becomes a rule of its own.
    fn group(&mut self, node: &Node) -> String {
        match node {
            Node::Lexeme(i) if !self.is_nullable[*i] => return self.atom(node),
            Node::Rule(_) => return self.atom(node),
            _ => {}
        }
        let name = format!("g{}", self.n_groups);
        self.n_groups += 1;
        let body = self.body(node);
        self.line(&name, &body);
        name
    }
}

fn regex(expr: &Expr, bodies: &[Expr], out: &mut String) {
    match expr {
        Expr::Class(chars) => class(chars, out),
        Expr::Rule(rule) => regex(&bodies[*rule], bodies, out),
        Expr::Seq(all) => {
            for part in all {
                regex(part, bodies, out);
            }
        }
        Expr::Alt(all) => {
            out.push_str("(?:");
            for (i, part) in all.iter().enumerate() {
                if i > 0 {
                    out.push('|');
                }
                regex(part, bodies, out);
            }
            out.push(')');
        }
        Expr::Repeat(inner, min, max) => {
            out.push_str("(?:");
            regex(inner, bodies, out);
            out.push(')');
            out.push_str(&counts(*min, *max));
        }
    }
}

fn class(chars: &CharSet, out: &mut String) {
    out.push('[');
    for &(low, high) in chars.ranges() {
        let _ = write!(out, "\\x{{{low:x}}}-\\x{{{high:x}}}");
    }
    out.push(']');
}
