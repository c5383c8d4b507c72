//! The description of a parameter in the table: its name, its range, the value that turns it off.

use std::fmt;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NumberKind {
    Real,
    Count,
    Integer,
}

/// A range of values, ends included, and its description.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ValueRange {
    pub low: f64,
    pub high: f64,
    /// The range in words.
    pub text: &'static str,
}

/// A number in the parameters `P`.
#[derive(Debug)]
pub struct Parameter<P> {
    /// The name in Rust and in HTTP requests; on the command line with hyphens.
    pub name: &'static str,
    pub technique: &'static str,
    /// The meaning, without range and neutral value.
    pub doc: &'static str,
    pub kind: NumberKind,
    pub default: f64,
    /// The value that turns the stage off, if this parameter can.
    pub off: Option<f64>,
    pub range: ValueRange,
    /// The range in HTTP requests.
    pub api: ValueRange,
    /// Whether the stage of the parameter reads the tokens so far.
    pub needs_history: bool,
    pub(super) get: fn(&P) -> f64,
    pub(super) set: fn(&mut P, f64),
}

impl<P> Parameter<P> {
    pub fn get(&self, params: &P) -> f64 {
        (self.get)(params)
    }

    /// Sets the parameter in `params`. A value that its type cannot hold becomes the nearest one.
    pub fn set(&self, params: &mut P, value: f64) {
        (self.set)(params, value);
    }

    /// Checks a value against one of the two ranges.
    pub fn check(&self, value: f64, range: &ValueRange) -> Result<(), ParamError> {
        match (range.low..=range.high).contains(&value) {
            true => Ok(()),
            false => Err(ParamError::new(self.name, &value, self.expected(range))),
        }
    }

    /// The range, the technique and the value that turns it off, in words.
    fn expected(&self, range: &ValueRange) -> String {
        let (range, technique) = (range.text, self.technique);
        match self.off {
            Some(off) => format!("{range} ({technique}; {off} = off)"),
            None => format!("{range} ({technique})"),
        }
    }

    /// A line of help: the meaning, the range and the value that turns the parameter off.
    pub fn help(&self) -> String {
        let (doc, range) = (self.doc.trim(), self.range.text);
        match self.off {
            Some(off) => format!("{doc}; {range}; {off} = off"),
            None => format!("{doc}; {range}"),
        }
    }
}

#[derive(Debug)]
pub struct ListParameter<P> {
    /// The name in Rust and in HTTP requests.
    pub name: &'static str,
    /// The command-line option for one element, without leading hyphens.
    pub option: &'static str,
    pub technique: &'static str,
    /// The meaning of an element.
    pub doc: &'static str,
    pub default: &'static [&'static str],
    /// The kind of the elements, with access to the list.
    pub kind: ListKind<P>,
}

/// The kind of a list's elements, with access to the list in the parameters.
#[derive(Debug)]
pub enum ListKind<P> {
    /// Tokens with a number that is added to their logits: an object in HTTP requests.
    Biases(fn(&mut P) -> &mut Vec<(u32, f32)>),
    /// Tokens that contain one of some texts: a list of the texts in HTTP requests.
    Breakers(fn(&mut P) -> &mut Vec<u32>),
}

impl<P> ListParameter<P> {
    /// Whether the numbers of the technique, which `table` describes, turn the list off.
    pub fn is_off(&self, table: &[Parameter<P>], params: &P) -> bool {
        let own = table.iter().filter(|p| p.technique == self.technique);
        let mut at_off = own.filter_map(|p| Some(p.get(params) == p.off?)).peekable();
        at_off.peek().is_some() && at_off.all(|is_off| is_off)
    }

    /// The default texts in words; empty if there are none.
    pub fn default_text(&self) -> String {
        let name = |text: &&str| match *text {
            "\n" => "line feed".to_owned(),
            text => format!("`{text}`"),
        };
        let names: Vec<String> = self.default.iter().map(name).collect();
        names.join(", ")
    }

    /// The form of an element on the command line.
    pub fn value(&self) -> &'static str {
        match self.kind {
            ListKind::Biases(_) => "ID=BIAS",
            ListKind::Breakers(_) => "TEXT",
        }
    }
}

/// A parameter that belongs to no stage.
#[derive(Debug)]
pub struct GlobalParameter {
    /// The name in HTTP requests.
    pub name: &'static str,
    /// The command-line option, if there is one.
    pub option: Option<&'static str>,
    pub doc: &'static str,
    /// The behaviour without a value, in words.
    pub default: &'static str,
    pub kind: GlobalKind,
}

/// The kind of a parameter that belongs to no stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GlobalKind {
    Integer,
    Stages,
    Flag,
}

pub(super) trait Number: Copy {
    const KIND: NumberKind;
    fn to_f64(self) -> f64;
    fn from_f64(value: f64) -> Self;
}

macro_rules! numbers {
    ($($ty:ty = $kind:ident;)*) => {
        $(impl Number for $ty {
            const KIND: NumberKind = NumberKind::$kind;

            fn to_f64(self) -> f64 {
                f64::from(self)
            }

            #[allow(clippy::unnecessary_cast, reason = "one of the types is f64 itself")]
            fn from_f64(value: f64) -> Self {
                value as Self
            }
        })*
    };
}

numbers! {
    f64 = Real;
    u32 = Count;
    i32 = Integer;
}

/// An error about a parameter outside its range.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{field}`: found `{found}`, expected {expected}")]
pub struct ParamError {
    pub field: &'static str,
    /// The value that was found.
    pub found: String,
    /// The range that was expected.
    pub expected: String,
}

impl ParamError {
    pub(super) fn new(
        field: &'static str,
        found: &dyn fmt::Display,
        expected: impl Into<String>,
    ) -> Self {
        Self {
            field,
            found: found.to_string(),
            expected: expected.into(),
        }
    }

    /// Succeeds if `is_good`.
    pub fn unless(
        is_good: bool,
        field: &'static str,
        found: &dyn fmt::Display,
        expected: &str,
    ) -> Result<(), Self> {
        if is_good {
            return Ok(());
        }
        Err(Self::new(field, found, expected))
    }
}
