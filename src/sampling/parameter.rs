//! A parameter as the table describes it: its name, its range, the value that turns it off.

use std::fmt;

/// The type of a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `f64`
    Real,
    /// `u32`
    Count,
    /// `i32`
    Integer,
}

/// A range of values, ends included, and how it is called.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Range {
    /// The lowest value.
    pub low: f64,
    /// The highest value.
    pub high: f64,
    /// In words.
    pub text: &'static str,
}

/// A number among the parameters `P`.
#[derive(Debug)]
pub struct Parameter<P> {
    /// Its name in Rust and in HTTP requests; on the command line with hyphens.
    pub name: &'static str,
    /// The technique that it belongs to.
    pub technique: &'static str,
    /// Its meaning, without range and neutral value.
    pub doc: &'static str,
    /// Its type.
    pub kind: Kind,
    /// Its value where nothing sets it.
    pub default: f64,
    /// The value at which its stage does nothing, if it is up to this parameter.
    pub off: Option<f64>,
    /// Its range.
    pub range: Range,
    /// Its range in HTTP requests.
    pub api: Range,
    /// Whether its stage reads the tokens so far.
    pub needs_history: bool,
    pub(super) get: fn(&P) -> f64,
    pub(super) set: fn(&mut P, f64),
}

impl<P> Parameter<P> {
    /// Its value.
    pub fn get(&self, params: &P) -> f64 {
        (self.get)(params)
    }

    /// Sets it. A value that its type does not hold becomes the nearest one.
    pub fn set(&self, params: &mut P, value: f64) {
        (self.set)(params, value);
    }

    /// Checks a value.
    ///
    /// # Errors
    /// It is out of `range`, which is one of the two.
    pub fn check(&self, value: f64, range: &Range) -> Result<(), ParamError> {
        match (range.low..=range.high).contains(&value) {
            true => Ok(()),
            false => Err(ParamError::new(self.name, &value, self.expected(range))),
        }
    }

    /// The range, the technique and the value that turns it off, in words.
    fn expected(&self, range: &Range) -> String {
        let (range, technique) = (range.text, self.technique);
        match self.off {
            Some(off) => format!("{range} ({technique}; {off} = off)"),
            None => format!("{range} ({technique})"),
        }
    }

    /// One line of help: what it means, its range and the value that turns it off.
    pub fn help(&self) -> String {
        let (doc, range) = (self.doc.trim(), self.range.text);
        match self.off {
            Some(off) => format!("{doc}; {range}; {off} = off"),
            None => format!("{doc}; {range}"),
        }
    }
}

/// A list among the parameters `P`.
#[derive(Debug)]
pub struct List<P> {
    /// Its name in Rust and in HTTP requests.
    pub name: &'static str,
    /// The option of the command line that gives an element, without hyphens before it.
    pub option: &'static str,
    /// The technique that it belongs to.
    pub technique: &'static str,
    /// What an element means.
    pub doc: &'static str,
    /// The texts where nothing sets it.
    pub default: &'static [&'static str],
    /// What its elements are, and where it is.
    pub kind: ListKind<P>,
}

/// What the elements of a list are, and the list itself.
#[derive(Debug)]
pub enum ListKind<P> {
    /// Tokens and what is added to their logits: an object in HTTP requests.
    Biases(fn(&mut P) -> &mut Vec<(u32, f32)>),
    /// Tokens that hold one of some texts: a list of the texts in HTTP requests.
    Breakers(fn(&mut P) -> &mut Vec<u32>),
}

impl<P> List<P> {
    /// Whether the numbers of its technique, which `table` describes, turn it off.
    pub fn is_off(&self, table: &[Parameter<P>], params: &P) -> bool {
        let own = table.iter().filter(|p| p.technique == self.technique);
        let mut at_off = own.filter_map(|p| Some(p.get(params) == p.off?)).peekable();
        at_off.peek().is_some() && at_off.all(|is_off| is_off)
    }

    /// The texts of the default in words; empty if there are none.
    pub fn default_text(&self) -> String {
        let name = |text: &&str| match *text {
            "\n" => "line feed".to_owned(),
            text => format!("`{text}`"),
        };
        let names: Vec<String> = self.default.iter().map(name).collect();
        names.join(", ")
    }

    /// How an element is written on the command line.
    pub fn value(&self) -> &'static str {
        match self.kind {
            ListKind::Biases(_) => "ID=BIAS",
            ListKind::Breakers(_) => "TEXT",
        }
    }
}

/// A parameter that belongs to no stage.
#[derive(Debug)]
pub struct Other {
    /// Its name in HTTP requests.
    pub name: &'static str,
    /// Its option of the command line, if it has one.
    pub option: Option<&'static str>,
    /// Its meaning.
    pub doc: &'static str,
    /// What holds where nothing sets it, in words.
    pub default: &'static str,
    /// What it is.
    pub kind: OtherKind,
}

/// What a parameter is that belongs to no stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OtherKind {
    /// An integer.
    Integer,
    /// Names of stages.
    Stages,
    /// True or false.
    Flag,
}

/// A type of parameters.
pub(super) trait Number: Copy {
    const KIND: Kind;
    fn to_f64(self) -> f64;
    fn from_f64(value: f64) -> Self;
}

macro_rules! numbers {
    ($($ty:ty = $kind:ident;)*) => {
        $(impl Number for $ty {
            const KIND: Kind = Kind::$kind;

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

/// A parameter outside its range.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{field}`: found `{found}`, expected {expected}")]
pub struct ParamError {
    /// The parameter.
    pub field: &'static str,
    /// Its value.
    pub found: String,
    /// Its range.
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

    /// Nothing if `is_good`.
    ///
    /// # Errors
    /// It is not: the field, what was found and what was expected.
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
