//! The budget of reasoning: when it is spent, the next tokens are those that close the reasoning.
//!
//! Counts tokens after the opening mark. Not here: the marks, and other choices of tokens.

/// A limit on reasoning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Thinking {
    /// The mark that opens the reasoning; none if the prompt opens it.
    pub open: Option<Vec<u8>>,
    /// The mark that closes it.
    pub close: Vec<u8>,
    /// The tokens that close it.
    pub closing: Vec<u32>,
    /// Maximum number of tokens of reasoning.
    pub most: usize,
}

#[derive(Debug, PartialEq, Eq)]
enum State {
    Before,
    Inside(usize),
    /// The number of closing tokens that were chosen.
    Closing(usize),
    Ended,
}

#[derive(Debug)]
pub(super) struct ThinkingBudget {
    thinking: Thinking,
    state: State,
    /// The last bytes of the completion, as many as the longest mark has.
    tail: Vec<u8>,
}

impl ThinkingBudget {
    pub(super) fn new(thinking: &Thinking) -> Self {
        let state = match thinking.open {
            Some(_) => State::Before,
            None => State::Inside(0),
        };
        Self {
            thinking: thinking.clone(),
            state,
            tail: Vec::new(),
        }
    }

    /// The token that must come next.
    pub(super) fn forced(&self) -> Option<u32> {
        let at = match self.state {
            State::Inside(n) if n >= self.thinking.most => 0,
            State::Closing(n) => n,
            _ => return None,
        };
        self.thinking.closing.get(at).copied()
    }

    /// Gives up the budget, because the forced token is not allowed.
    pub(super) fn abandon(&mut self) {
        self.state = State::Ended;
    }

    pub(super) fn push(&mut self, bytes: &[u8]) {
        if self.state == State::Ended {
            return;
        }
        let was_forced = self.forced().is_some();
        self.tail.extend_from_slice(bytes);
        let ends_in = |mark: &[u8]| find_end(&self.tail, mark, bytes.len());
        let marks = (
            self.thinking.open.as_deref(),
            self.thinking.close.as_slice(),
        );
        let found = match (&self.state, marks.0) {
            (State::Before, Some(open)) => ends_in(open),
            _ => ends_in(marks.1),
        };
        self.state = match self.state {
            State::Before if found => State::Inside(0),
            State::Before => State::Before,
            _ if found => State::Ended,
            State::Inside(_) if was_forced => State::Closing(1),
            State::Inside(n) => State::Inside(n + 1),
            State::Closing(n) if n + 1 < self.thinking.closing.len() => State::Closing(n + 1),
            State::Closing(_) | State::Ended => State::Ended,
        };
        let longest = self
            .thinking
            .open
            .as_ref()
            .map_or(0, Vec::len)
            .max(self.thinking.close.len());
        let surplus = self.tail.len().saturating_sub(longest);
        self.tail.drain(..surplus);
    }
}

/// Whether a mark ends within the last `n` bytes.
fn find_end(text: &[u8], mark: &[u8], n: usize) -> bool {
    let from = text.len().saturating_sub(n + mark.len().saturating_sub(1));
    !mark.is_empty() && text[from..].windows(mark.len()).any(|part| part == mark)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn budget(open: Option<&str>, most: usize) -> ThinkingBudget {
        ThinkingBudget::new(&Thinking {
            open: open.map(|open| open.as_bytes().to_vec()),
            close: b"</t>".to_vec(),
            closing: vec![7, 8],
            most,
        })
    }

    /// Pushes tokens. Returns the forced token before the first and after each one.
    fn forced(budget: &mut ThinkingBudget, tokens: &[&str]) -> Vec<Option<u32>> {
        let mut out = vec![budget.forced()];
        for token in tokens {
            budget.push(token.as_bytes());
            out.push(budget.forced());
        }
        out
    }

    #[test]
    fn the_block_is_closed_when_the_budget_is_spent() {
        let found = forced(&mut budget(None, 2), &["a", "b", "</", "t>", "c"]);
        assert_eq!(found, [None, None, Some(7), Some(8), None, None]);
        assert_eq!(forced(&mut budget(None, 0), &[]), [Some(7)]);
    }

    #[test]
    fn a_block_that_ends_in_time_is_left_alone() {
        let found = forced(
            &mut budget(None, 4),
            &["a", "</t", "> c", "d", "e", "f", "g"],
        );
        assert!(found.iter().all(Option::is_none), "{found:?}");
    }

    #[test]
    fn the_count_starts_with_the_block() {
        let found = forced(
            &mut budget(Some("<t>"), 1),
            &["<", "t>", "a", "</", "t>", "<t>", "b"],
        );
        assert_eq!(
            found,
            [None, None, None, Some(7), Some(8), None, None, None]
        );
        let found = forced(&mut budget(Some("<t>"), 0), &["a", "b", "c"]);
        assert!(found.iter().all(Option::is_none), "{found:?}");
    }
}
