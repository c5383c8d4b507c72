//! A value of the language.

use std::fmt;

/// A value of the language.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    Int(i64),
    Float(f64),
    Bool(bool),
    Str(String),
    /// One value per layer (or any other index).
    List(Vec<Self>),
}

impl Value {
    /// Name of the type, for messages.
    pub fn type_name(&self) -> &'static str {
        match self {
            Self::Int(_) => "integer",
            Self::Float(_) => "float",
            Self::Bool(_) => "boolean",
            Self::Str(_) => "string",
            Self::List(_) => "array",
        }
    }

    pub(super) fn number(&self) -> Result<f64, String> {
        match *self {
            Self::Int(v) => Ok(v as f64),
            Self::Float(v) => Ok(v),
            _ => Err(format!("expected a number, found {}", self.type_name())),
        }
    }

    pub(super) fn truth(&self) -> Result<bool, String> {
        match *self {
            Self::Bool(v) => Ok(v),
            _ => Err(format!(
                "expected true or false, found {} `{self}`",
                self.type_name()
            )),
        }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Int(v) => write!(f, "{v}"),
            Self::Float(v) => write!(f, "{v:?}"),
            Self::Bool(v) => write!(f, "{v}"),
            Self::Str(v) => write!(f, "{v}"),
            Self::List(v) => {
                f.write_str("[")?;
                for (i, item) in v.iter().enumerate() {
                    write!(f, "{}{item}", if i == 0 { "" } else { ", " })?;
                }
                f.write_str("]")
            }
        }
    }
}
