//! The sampling parameters of a request, as plain numbers made from the table of the stages.
//!
//! The ranges are those in which the arithmetic is meaningful; HTTP requests may have narrower ones. The vocabulary
//! belongs to the caller. `chain.rs` builds the stages.

use std::fmt;
use std::str::FromStr;

use super::parameter::{
    GlobalKind, GlobalParameter, ListKind, ListParameter, Number, ParamError, Parameter, ValueRange,
};
use super::table::sampling_table;

/// The range for HTTP requests: the narrower one if the row has two.
macro_rules! api_range {
    ($range:expr) => {
        $range
    };
    ($range:expr, $api:expr) => {
        $api
    };
}

/// The neutral value, if the row has one.
macro_rules! neutral {
    () => {
        None
    };
    ($off:expr) => {
        Some($off)
    };
}

macro_rules! params {
    (
        stages {$(
            $(#[doc = $doc:literal])*
            $variant:ident = $module:ident, $technique:literal {
                is_cut: $is_cut:literal, needs_history: $needs_history:literal,
                lists: [$(
                    $(#[doc = $list_doc:literal])*
                    $list:ident: $list_ty:ty, $list_kind:ident $option:literal = [$($text:literal),*];
                )*],
                $(
                    $(#[doc = $field_doc:literal])*
                    $field:ident: $ty:ty = $default:expr, $(off $off:expr,)? [$low:expr, $high:expr] $range:literal
                    $(, api [$api_low:expr, $api_high:expr] $api_range:literal)?;
                )*
            }
        )*}
        search $search:literal {
            $(#[doc = $alpha_doc:literal])*
            $alpha:ident: $alpha_ty:ty = $alpha_default:expr, off $alpha_off:expr, [$alpha_low:expr, $alpha_high:expr] $alpha_range:literal;
        }
    ) => {
        /// A stage of the chain, as [`Params::order`] lists it.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum StageName {
            $($(#[doc = $doc])* $variant,)*
        }

        impl StageName {
            /// Every stage, in the order of the default chain.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// The name that users write.
            pub fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => stringify!($module),)*
                }
            }

            pub fn doc(self) -> &'static str {
                match self {
                    $(Self::$variant => concat!($($doc),*),)*
                }
            }

            /// The technique that its parameters belong to.
            pub fn technique(self) -> &'static str {
                match self {
                    $(Self::$variant => $technique,)*
                }
            }

            /// Whether the stage removes tokens by their probabilities, so that what is left is its
            /// decision.
            pub(super) fn is_cut(self) -> bool {
                match self {
                    $(Self::$variant => $is_cut,)*
                }
            }
        }

        /// The parameters of one request. The default is neutral: a draw from the model's distribution.
        #[derive(Clone, Debug, PartialEq)]
        pub struct Params {
            $(
                $($(#[doc = $field_doc])* pub $field: $ty,)*
                $($(#[doc = $list_doc])* pub $list: $list_ty,)*
            )*
            $(#[doc = $alpha_doc])*
            pub $alpha: $alpha_ty,
            /// Seed of the random numbers; without effect at temperature 0.
            pub seed: u64,
            /// The stages in the order they run. One that is left out must have neutral parameters.
            pub order: Vec<StageName>,
        }

        impl Default for Params {
            fn default() -> Self {
                Self {
                    $(
                        $($field: $default,)*
                        $($list: Vec::new(),)*
                    )*
                    $alpha: $alpha_default,
                    seed: 0,
                    order: StageName::ALL.to_vec(),
                }
            }
        }

        /// Every list in [`Params`], by stage.
        pub const LISTS: &[ListParameter<Params>] = &[
            $($(
                ListParameter {
                    name: stringify!($list),
                    option: $option,
                    technique: $technique,
                    doc: concat!($($list_doc),*),
                    default: &[$($text),*],
                    kind: ListKind::$list_kind(|params| &mut params.$list),
                },
            )*)*
        ];

        /// Every number in [`Params`], by stage.
        pub const PARAMETERS: &[Parameter<Params>] = &[
            $($(
                {
                    let range = ValueRange { low: $low, high: $high, text: $range };
                    Parameter {
                        name: stringify!($field),
                        technique: $technique,
                        doc: concat!($($field_doc),*),
                        kind: <$ty as Number>::KIND,
                        default: $default as f64,
                        off: neutral!($($off)?),
                        range,
                        api: api_range!(range $(, ValueRange { low: $api_low, high: $api_high, text: $api_range })?),
                        needs_history: $needs_history,
                        get: |params| params.$field.to_f64(),
                        set: |params, value| params.$field = Number::from_f64(value),
                    }
                },
            )*)*
            {
                let range = ValueRange { low: $alpha_low, high: $alpha_high, text: $alpha_range };
                Parameter {
                    name: stringify!($alpha),
                    technique: $search,
                    doc: concat!($($alpha_doc),*),
                    kind: <$alpha_ty as Number>::KIND,
                    default: $alpha_default as f64,
                    off: Some($alpha_off),
                    range,
                    api: range,
                    needs_history: true,
                    get: |params| params.$alpha.to_f64(),
                    set: |params, value| params.$alpha = Number::from_f64(value),
                }
            },
        ];
    };
}

pub(super) use {api_range, neutral, params};

sampling_table!(params);

impl fmt::Display for StageName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for StageName {
    type Err = ParamError;

    fn from_str(name: &str) -> Result<Self, ParamError> {
        // llama-server's clients write these.
        let known = match name {
            "typ_p" | "typ" | "typ-p" | "typical" | "typical-p" => "typical_p",
            "temp" => "temperature",
            "nucleus" | "top-p" => "top_p",
            "top-k" => "top_k",
            "min-p" => "min_p",
            "top-n-sigma" => "top_n_sigma",
            name => name,
        };
        let known = Self::ALL.iter().find(|stage| stage.as_str() == known);
        known.copied().ok_or_else(|| {
            let names: Vec<_> = Self::ALL.iter().map(|stage| stage.as_str()).collect();
            let expected = format!("one of `{}`", names.join("`, `"));
            ParamError::new("samplers", &name, expected)
        })
    }
}

const LETTERS: &[(&str, StageName)] = &[
    ("e", StageName::Penalties),
    ("d", StageName::Dry),
    ("s", StageName::TopNSigma),
    ("k", StageName::TopK),
    ("f", StageName::TfsZ),
    ("y", StageName::TypicalP),
    ("p", StageName::TopP),
    ("m", StageName::MinP),
    ("x", StageName::Xtc),
    ("t", StageName::Temperature),
];

impl StageName {
    /// The stage that llama.cpp writes as this letter.
    pub fn of_letter(letter: &str) -> Result<Self, ParamError> {
        let known = LETTERS.iter().find(|(own, _)| *own == letter);
        known.map(|(_, stage)| *stage).ok_or_else(|| {
            let letters: String = LETTERS.iter().map(|(own, _)| *own).collect();
            let expected = format!("letters of `{letters}`");
            ParamError::new("samplers", &letter, expected)
        })
    }
}

/// The parameters that belong to no stage.
pub const OTHERS: &[GlobalParameter] = &[
    GlobalParameter {
        name: "seed",
        option: Some("--seed"),
        doc: "seed of the random numbers, an integer",
        default: "random; `bench run` and `bench chat` 0",
        kind: GlobalKind::Integer,
    },
    GlobalParameter {
        name: "samplers",
        option: Some("--samplers"),
        doc: "names of the stages in the order in which they run; a stage that is left out must be off; in HTTP requests \
              its parameters have no effect, unless the server is strict (`--strict-fields`)",
        default: "all, as above",
        kind: GlobalKind::Stages,
    },
    GlobalParameter {
        name: "ignore_eos",
        option: None,
        doc: "whether the end-of-generation tokens are excluded",
        default: "`false`",
        kind: GlobalKind::Flag,
    },
];

/// The text of docs/sampling.md: every stage in the order of the default chain, and every parameter.
pub fn reference() -> String {
    let mut out = String::from(
        "# Sampling\n\nA parameter is a field of HTTP requests. On the command line it is an option with hyphens (`--top-k`). The defaults\n\
         are those of HTTP requests; `bench run` and `bench chat` have the same, but temperature 0 (greedy). What the authors of a model recommend comes\n\
         before them ([commands.md](commands.md#run)). This page is made from `src/sampling/table.rs`; do not edit.\n\n\
         ## Stages, in the order of the default chain\n\n| stage | what it does |\n|---|---|\n",
    );
    for stage in StageName::ALL {
        out += &format!("| `{stage}` |{} |\n", stage.doc());
    }
    out += "\n## Parameters\n\n| parameter | meaning | range | default | off |\n|---|---|---|---|---|\n";
    for p in PARAMETERS {
        let off = p.off.map(|off| off.to_string()).unwrap_or_default();
        let range = match p.api == p.range {
            true => p.range.text.to_owned(),
            false => format!("{}; in HTTP requests {}", p.range.text, p.api.text),
        };
        let (name, doc, default) = (p.name, p.doc.trim(), p.default);
        out += &format!("| `{name}` | {doc} | {range} | {default} | {off} |\n");
    }
    out += "\n## Other fields\n\n| field | option | meaning | default |\n|---|---|---|---|\n";
    for list in LISTS {
        let (name, option, value, doc) = (list.name, list.option, list.value(), list.doc.trim());
        let default = match list.default_text() {
            text if text.is_empty() => "none".to_owned(),
            text => text,
        };
        out += &format!("| `{name}` | `--{option} {value}` | {doc} | {default} |\n");
    }
    for other in OTHERS {
        let option = other.option.map(|option| format!("`{option}` "));
        let (name, option, doc) = (other.name, option.unwrap_or_default(), other.doc);
        out += &format!("| `{name}` | {option}| {doc} | {} |\n", other.default);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_what_the_table_says() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/sampling.md");
        if std::env::var_os("UPDATE_DOCS").is_some() {
            std::fs::write(path, reference()).expect("the page is writable");
        }
        let page = std::fs::read_to_string(path).expect("the page is there");
        assert_eq!(page, reference(), "UPDATE_DOCS=1 writes it");
    }

    #[test]
    fn names_are_read_back() {
        for &stage in StageName::ALL {
            assert_eq!(stage.as_str().parse(), Ok(stage));
        }
        assert_eq!("typ_p".parse(), Ok(StageName::TypicalP));
        for (letter, stage) in LETTERS {
            assert_eq!(StageName::of_letter(letter), Ok(*stage));
        }
        assert!(StageName::of_letter("q").is_err() && StageName::of_letter("").is_err());
        let error = "top_q".parse::<StageName>().expect_err("no such stage");
        assert_eq!(
            error.to_string(),
            "`samplers`: found `top_q`, expected one of `logit_bias`, `penalties`, `dry`, \
             `top_n_sigma`, `top_k`, `tfs_z`, `typical_p`, `top_p`, `min_p`, `xtc`, `temperature`, \
             `mirostat`"
        );
    }
}
