//! Rewrites the expressions of one tag, token by token, before the engine parses them.
//!
//! `a + b - c` becomes `a |__add( b) |__sub( c)`, and so do `~`, `*`, `%` and slices; subscripts,
//! comparisons and assignments are wrapped in the checks of `operators`. No syntax tree is built:
//! a filter binds tighter than every binary operator, so an operand only has to be closed where an
//! operator of the same or a lower precedence follows it. Invariants: only brackets and filters are
//! inserted and no line break is touched, so the line numbers stay; what is not an expression is
//! left for the engine's parser to refuse.

use super::operators::names;

/// Deepest nesting of brackets.
const MAX_BRACKETS: usize = 60;

/// The kind of a token, as far as the rewriting cares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Word,
    Number,
    Text,
    Symbol,
}

/// One token of a tag: a byte range of the template.
#[derive(Debug, Clone, Copy)]
pub(super) struct Token {
    pub(super) kind: Kind,
    pub(super) start: usize,
    pub(super) end: usize,
}

/// Text to put in place of a byte range; an empty range inserts.
#[derive(Debug)]
pub(super) struct Edit {
    pub(super) start: usize,
    pub(super) end: usize,
    pub(super) text: String,
}

/// Precedence of the operators that become filters; the higher binds tighter.
const SUM: u8 = 1;
const CONCAT: u8 = 2;
const PRODUCT: u8 = 3;
const POWER: u8 = 4;

/// An operand being read: the whole of an expression (level 0), or the right side of an operator.
#[derive(Debug)]
struct Operand {
    level: u8,
    start: usize,
    /// Whether an operator that stays an operator stands in it, so that a filter after it needs
    /// brackets around it.
    is_compound: bool,
}

/// One level of brackets.
#[derive(Debug)]
struct Frame {
    operands: Vec<Operand>,
    /// The first token of what goes through a check before it is used, and the check: the right side
    /// of a comparison, a subscript, the key of a mapping, what a loop runs over.
    checked_from: Option<(usize, &'static str)>,
    /// Where the item stands to which a subscript would apply.
    primary: Option<usize>,
    /// Whether an operand comes next: a sign there is not a binary operator.
    expects_operand: bool,
    /// Whether the argument of a test may come next (`is divisibleby 3`).
    may_take_argument: bool,
    /// For the brackets of a subscript, the token that opened them.
    subscript_at: Option<usize>,
    is_mapping: bool,
    /// The colons between the parts of a slice.
    colons: Vec<usize>,
}

impl Frame {
    fn new(start: usize, subscript_at: Option<usize>) -> Self {
        Self {
            operands: vec![Operand {
                level: 0,
                start,
                is_compound: false,
            }],
            checked_from: None,
            primary: None,
            expects_operand: true,
            may_take_argument: false,
            subscript_at,
            is_mapping: false,
            colons: Vec::new(),
        }
    }
}

/// What a word means where it stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    Free,
    Attribute,
    Filter,
    Test,
}

/// The edits that rewrite the tokens of one tag; `keyword` is the first word of a block tag and
/// empty for `{{ … }}`.
pub(super) fn rewrite(
    text: &str,
    tokens: &[Token],
    keyword: &str,
) -> Result<Vec<Edit>, &'static str> {
    let tokens_from = usize::from(!keyword.is_empty());
    let start = tokens.get(tokens_from).map_or(0, |token| token.start);
    let mut rewriter = Rewriter {
        text,
        tokens,
        edits: Vec::new(),
        frames: vec![Frame::new(start, None)],
        role: Role::Free,
        is_loop_head: keyword == "for",
    };
    for at in tokens_from..tokens.len() {
        rewriter.step(at)?;
    }
    while !rewriter.frames.is_empty() {
        rewriter.end_operands(tokens.len());
        rewriter.frames.pop();
    }
    if keyword == "set" {
        rewriter.check_assignment();
    }
    Ok(rewriter.edits)
}

struct Rewriter<'a> {
    text: &'a str,
    tokens: &'a [Token],
    edits: Vec<Edit>,
    frames: Vec<Frame>,
    role: Role,
    /// Before the `in` of a `for` tag.
    is_loop_head: bool,
}

impl<'a> Rewriter<'a> {
    fn token_text(&self, at: usize) -> &'a str {
        self.tokens
            .get(at)
            .map_or("", |token| &self.text[token.start..token.end])
    }

    /// Where the token at `at` starts; behind the last one, where that ends.
    fn start_of(&self, at: usize) -> usize {
        match self.tokens.get(at) {
            Some(token) => token.start,
            None => self.tokens.last().map_or(0, |token| token.end),
        }
    }

    /// Where the token before `at` ends.
    fn end_before(&self, at: usize) -> usize {
        at.checked_sub(1)
            .map_or(0, |before| self.tokens[before].end)
    }

    fn frame(&mut self) -> &mut Frame {
        if self.frames.is_empty() {
            // Only for brackets that close too often, which the parser will refuse.
            self.frames.push(Frame::new(0, None));
        }
        let last = self.frames.len() - 1;
        &mut self.frames[last]
    }

    fn insert(&mut self, at: usize, text: impl Into<String>) {
        self.edits.push(Edit {
            start: at,
            end: at,
            text: text.into(),
        });
    }

    fn step(&mut self, at: usize) -> Result<(), &'static str> {
        let token = self.tokens[at];
        let text = self.token_text(at);
        match token.kind {
            Kind::Word => self.word(at, text),
            Kind::Number | Kind::Text => {
                if self.role != Role::Attribute {
                    self.operand(token.start);
                }
                self.role = Role::Free;
            }
            Kind::Symbol => return self.symbol(at, text),
        }
        Ok(())
    }

    /// An operand begins, or goes on (`'a' 'b'`).
    fn operand(&mut self, start: usize) {
        let frame = self.frame();
        if frame.expects_operand || frame.may_take_argument {
            frame.primary = Some(start);
        }
        frame.expects_operand = false;
        frame.may_take_argument = false;
    }

    fn word(&mut self, at: usize, word: &str) {
        let role = std::mem::replace(&mut self.role, Role::Free);
        match (role, word) {
            (Role::Attribute, _) => {}
            (Role::Filter, _) => {
                let frame = self.frame();
                frame.primary = None;
                frame.may_take_argument = false;
            }
            (Role::Test, "not") => self.role = Role::Test,
            (Role::Test, _) => {
                let frame = self.frame();
                frame.primary = None;
                frame.may_take_argument = true;
            }
            (Role::Free, "is") => self.role = Role::Test,
            (Role::Free, "in") => {
                self.end_operands(at);
                let is_loop_head = std::mem::take(&mut self.is_loop_head);
                let check = if is_loop_head {
                    names::ITERATE
                } else {
                    names::WALK
                };
                self.frame().checked_from = Some((at + 1, check));
            }
            (Role::Free, "and" | "or" | "not" | "if" | "else") => self.end_operands(at),
            (Role::Free, "recursive") if !self.frame().expects_operand => self.end_operands(at),
            (Role::Free, _) => self.operand(self.tokens[at].start),
        }
    }

    fn symbol(&mut self, at: usize, symbol: &str) -> Result<(), &'static str> {
        self.role = Role::Free;
        let expects_operand = self.frame().expects_operand;
        match symbol {
            "(" | "[" | "{" => return self.open(at, symbol),
            ")" | "]" | "}" => self.close(at),
            "." => self.role = Role::Attribute,
            "|" => self.role = Role::Filter,
            "," | "=" => {
                self.end_operands(at);
                let frame = self.frame();
                frame.checked_from = frame.is_mapping.then_some((at + 1, names::WALK));
            }
            ":" => {
                self.end_operands(at);
                self.frame().colons.push(at);
            }
            "==" | "!=" | "<" | ">" | "<=" | ">=" => {
                self.end_operands(at);
                self.frame().checked_from = Some((at + 1, names::WALK));
            }
            // Signs, and the stars of unpacked arguments.
            _ if expects_operand => {}
            "+" => self.operator(at, SUM, names::ADD),
            "-" => self.operator(at, SUM, names::SUB),
            "~" => self.operator(at, CONCAT, names::CONCAT),
            "*" => self.operator(at, PRODUCT, names::MUL),
            "%" => self.operator(at, PRODUCT, names::MOD),
            "/" | "//" => self.kept_operator(PRODUCT, at),
            "**" => self.kept_operator(POWER, at),
            _ => {}
        }
        Ok(())
    }

    fn open(&mut self, at: usize, bracket: &str) -> Result<(), &'static str> {
        if self.frames.len() > MAX_BRACKETS {
            return Err("brackets nest too deep");
        }
        let frame = self.frame();
        let is_operand = frame.expects_operand || frame.may_take_argument;
        let is_subscript = bracket == "[" && !is_operand;
        if is_operand {
            self.operand(self.tokens[at].start);
        }
        let start = self.start_of(at + 1);
        let mut inner = Frame::new(start, is_subscript.then_some(at));
        inner.is_mapping = bracket == "{";
        // Calling a loop runs it again over the argument.
        let is_recursion =
            bracket == "(" && !is_operand && at > 0 && self.token_text(at - 1) == "loop";
        inner.checked_from =
            (is_subscript || inner.is_mapping || is_recursion).then_some((at + 1, names::WALK));
        self.frames.push(inner);
        Ok(())
    }

    fn close(&mut self, at: usize) {
        self.end_operands(at);
        let Some(inner) = self.frames.pop() else {
            return;
        };
        let primary = self.frame().primary;
        let (Some(open), Some(primary)) = (inner.subscript_at, primary) else {
            return;
        };
        if !inner.colons.is_empty() {
            self.slice(primary, open, at, &inner.colons);
        } else if !self.is_plain_key(open + 1, at) {
            self.insert(primary, "(");
            self.insert(self.tokens[open].start, format!("|{})", names::INDEX));
        }
    }

    /// `x[a:b]` as `(x|__slice(a,b))`; a part that is left out is none.
    fn slice(&mut self, primary: usize, open: usize, close: usize, colons: &[usize]) {
        self.insert(primary, "(");
        self.replace(open, format!("|{}(", names::SLICE));
        let mut before = open;
        for at in colons {
            let part = if before + 1 == *at { "none," } else { "," };
            self.replace(*at, part.to_owned());
            before = *at;
        }
        let part = if before + 1 == close { "none))" } else { "))" };
        self.replace(close, part.to_owned());
    }

    /// Puts text in the place of a token.
    fn replace(&mut self, at: usize, text: String) {
        let Token { start, end, .. } = self.tokens[at];
        self.edits.push(Edit { start, end, text });
    }

    /// Whether a subscript is a single literal, which finds its item at once.
    fn is_plain_key(&self, from: usize, to: usize) -> bool {
        to == from + 1
            && match self.tokens[from].kind {
                Kind::Text => true,
                Kind::Number => self.token_text(from).len() < 4,
                _ => false,
            }
    }

    /// Ends the right sides of operators that bind at least as tight as `level`.
    fn end_to_level(&mut self, level: u8, at: usize) {
        let end = self.end_before(at);
        while let [.., Operand { level: last, .. }] = self.frame().operands[..] {
            if last < level || last == 0 {
                break;
            }
            self.frame().operands.pop();
            self.insert(end, ")");
        }
    }

    fn operator(&mut self, at: usize, level: u8, filter: &str) {
        self.end_to_level(level, at);
        let end = self.end_before(at);
        if let Some(left) = self.frame().operands.last_mut()
            && std::mem::take(&mut left.is_compound)
        {
            let start = left.start;
            self.insert(start, "(");
            self.insert(end, ")");
        }
        self.replace(at, format!("|{filter}("));
        let start = self.start_of(at + 1);
        let frame = self.frame();
        frame.operands.push(Operand {
            level,
            start,
            is_compound: false,
        });
        frame.expects_operand = true;
        frame.may_take_argument = false;
    }

    /// An operator that the engine evaluates itself.
    fn kept_operator(&mut self, level: u8, at: usize) {
        self.end_to_level(level, at);
        let frame = self.frame();
        if let Some(operand) = frame.operands.last_mut() {
            operand.is_compound = true;
        }
        frame.expects_operand = true;
        frame.may_take_argument = false;
    }

    /// Ends everything that binds tighter than a comparison, before the token at `at`.
    fn end_operands(&mut self, at: usize) {
        self.end_to_level(SUM, at);
        if let Some((from, check)) = self.frame().checked_from.take()
            && from < at
            && !(from + 1 == at && self.tokens[from].kind != Kind::Word)
        {
            let (start, end) = (self.start_of(from), self.end_before(at));
            self.insert(start, "(");
            self.insert(end, format!(")|{check}"));
        }
        let start = self.start_of(at + 1);
        let frame = self.frame();
        frame.operands[0].start = start;
        frame.operands[0].is_compound = false;
        frame.primary = None;
        frame.expects_operand = true;
        frame.may_take_argument = false;
    }

    /// Wraps the right side of `{% set target = … %}`.
    fn check_assignment(&mut self) {
        // Behind a filter it names an argument (`{% set x | replace(old='a') %}`).
        let assign = (0..self.tokens.len())
            .take_while(|&at| self.token_text(at) != "|")
            .find(|&at| self.token_text(at) == "=");
        let Some(assign) = assign.filter(|assign| assign + 1 < self.tokens.len()) else {
            return;
        };
        let is_attribute = (0..assign).any(|at| self.token_text(at) == ".");
        let filter = if is_attribute {
            names::KEEP_INSIDE
        } else {
            names::KEEP
        };
        let (start, end) = (self.start_of(assign + 1), self.start_of(self.tokens.len()));
        self.insert(start, "(");
        self.insert(end, format!(")|{filter}"));
    }
}
