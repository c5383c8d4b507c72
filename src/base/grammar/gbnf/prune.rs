//! Removes the parts of a grammar that match no text, such as a rule that always requires itself.
//!
//! The matcher would enter them, and a completion would never end.

use super::parse::{Expr, GbnfRules};

/// The grammar without parts that match no text; `None` if its root matches none.
pub(super) fn prune(grammar: &GbnfRules) -> Option<GbnfRules> {
    let mut fits = vec![false; grammar.bodies.len()];
    loop {
        let mut is_changed = false;
        for (i, body) in grammar.bodies.iter().enumerate() {
            if !fits[i] && has_text(body, &fits) {
                fits[i] = true;
                is_changed = true;
            }
        }
        if !is_changed {
            break;
        }
    }
    let bodies = grammar.bodies.iter();
    fits[grammar.root].then(|| GbnfRules {
        bodies: bodies.map(|body| kept(body, &fits)).collect(),
        ..*grammar
    })
}

/// Whether an expression matches some text, given the rules for which that is known.
fn has_text(expr: &Expr, fits: &[bool]) -> bool {
    match expr {
        Expr::Class(_) => true,
        Expr::Rule(rule) => fits[*rule],
        Expr::Seq(all) => all.iter().all(|part| has_text(part, fits)),
        Expr::Alt(all) => all.iter().any(|part| has_text(part, fits)),
        Expr::Repeat(inner, min, _) => *min == 0 || has_text(inner, fits),
    }
}

/// An expression without the parts that match no text. An expression that matches none as a whole occurs only in rules
/// that are unreachable.
fn kept(expr: &Expr, fits: &[bool]) -> Expr {
    match expr {
        Expr::Class(_) | Expr::Rule(_) => expr.clone(),
        Expr::Seq(all) => Expr::Seq(all.iter().map(|part| kept(part, fits)).collect()),
        Expr::Alt(all) => {
            let all = all.iter().filter(|part| has_text(part, fits));
            Expr::Alt(all.map(|part| kept(part, fits)).collect())
        }
        Expr::Repeat(inner, ..) if !has_text(inner, fits) => Expr::Seq(Vec::new()),
        Expr::Repeat(inner, min, max) => Expr::Repeat(Box::new(kept(inner, fits)), *min, *max),
    }
}
