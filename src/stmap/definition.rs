//! A map as read from TOML.

use std::collections::BTreeMap;

use crate::arch::expr::Expr;
use crate::arch::{Span, Spanned};

use super::config::Expressions;
use super::rearrange::Pattern;

/// A map from one kind of folder to one architecture.
#[derive(Clone, Debug, Default)]
pub(super) struct Map {
    /// The architecture that the tensors and parameters are for; none if there is a text model instead.
    pub(super) arch: Option<Expr>,
    /// Names in `architectures` of the configuration.
    pub(super) classes: Vec<Spanned<String>>,
    /// Names in `model_type` of the configuration of a text model that another model contains.
    pub(super) types: Vec<Spanned<String>>,
    /// The text model that models of these classes contain; such a map has no architecture of its own.
    pub(super) text: Option<TextModel>,
    /// Endings of classes, and those of the classes whose maps serve them too.
    pub(super) endings: BTreeMap<String, Vec<String>>,
    /// Prefixes of all stored names; the first that is present is used.
    pub(super) roots: Vec<String>,
    /// Object of the configuration whose keys come first.
    pub(super) nested: Option<String>,
    /// Keys whose value at the top of the configuration comes before that of the nested object.
    pub(super) outer: Vec<String>,
    /// Where else a key, or all keys of an object, may be found.
    pub(super) aliases: BTreeMap<String, Vec<String>>,
    /// Prefixes of a stored name that some versions of a folder have and others have not.
    pub(super) prefixes: Vec<String>,
    /// Values of keys that a configuration may leave out. A key that nothing reads has no effect at
    /// this value.
    pub(super) defaults: BTreeMap<String, Fallback>,
    /// The meaning of keys that no map reads, for messages.
    pub(super) meanings: BTreeMap<String, String>,
    /// Warnings about what is not computed, each with its condition.
    pub(super) notes: Vec<(String, Requirement)>,
    /// Named values for other expressions.
    pub(super) values: Expressions,
    /// Conditions on the configuration.
    pub(super) rules: Vec<Requirement>,
    /// Parameters of the architecture.
    pub(super) params: Vec<Target>,
    /// Metadata that the architecture does not read, but other engines.
    pub(super) metadata: Vec<Target>,
    /// Groups of tensors.
    pub(super) groups: Vec<Group>,
    /// Stored tensors that are ignored (`*` stands for anything).
    pub(super) ignored_tensors: Vec<Spanned<String>>,
    /// Parts of a model that text does not need, and the tensors of each (`*` stands for anything).
    pub(super) parts: Vec<(String, Vec<Spanned<String>>)>,
    /// Keys of the configuration that are ignored.
    pub(super) ignored_keys: Vec<Spanned<String>>,
    /// Whether keys outside the nested object belong to other parts of the model.
    pub(super) is_part: bool,
}

impl Map {
    /// The architectures that folders of this map may have.
    pub(super) fn archs(&self) -> Vec<String> {
        let mut names = Vec::new();
        if let Some(arch) = &self.arch {
            arch.for_each_text_result(&mut |name| names.push(name.to_owned()));
        }
        names
    }
}

/// Where a multimodal model holds its text model.
#[derive(Clone, Debug)]
pub(super) struct TextModel {
    /// Objects that may be its configuration; without any of them the whole configuration is.
    pub(super) objects: Vec<String>,
    /// Its class, if `architectures` and `model_type` of the object name none that is known.
    pub(super) class: Option<Expr>,
    /// Prefixes of its tensors, and the prefixes that are stored in their place.
    pub(super) names: BTreeMap<String, Vec<String>>,
}

/// The value of a key that a configuration omits.
#[derive(Clone, Debug)]
pub(super) struct Fallback {
    /// If the key is absent.
    pub(super) absent: Option<Expr>,
    /// If it is `null`.
    pub(super) null: Option<Expr>,
}

/// A condition that a configuration must meet.
#[derive(Clone, Debug)]
pub(super) struct Requirement {
    pub(super) holds: Expr,
    pub(super) span: Span,
}

/// A parameter or a key, and its value.
#[derive(Clone, Debug)]
pub(super) struct Target {
    pub(super) name: Spanned<String>,
    pub(super) value: Given,
    /// Whether it is set.
    pub(super) when: Option<Expr>,
    /// Whether the value is one for each layer.
    pub(super) per_layer: bool,
    /// Whether a key that the configuration lacks leaves it unset.
    pub(super) is_optional: bool,
}

/// The value of a parameter.
#[derive(Clone, Debug)]
pub(super) enum Given {
    One(Expr),
    List(Vec<Expr>),
    /// The numbers of a stored tensor.
    Stored(String),
}

/// Tensors that exist once, or once for each layer.
#[derive(Clone, Debug, Default)]
pub(super) struct Group {
    /// Number of layers, and the first of them; none: the tensors exist once.
    pub(super) layers: Option<(Expr, Option<Expr>)>,
    /// Prefix in the architecture.
    pub(super) prefix: String,
    /// Prefix of stored names.
    pub(super) from: String,
    pub(super) tensors: Vec<TensorRule>,
}

/// How a tensor of the architecture is made.
#[derive(Clone, Debug)]
pub(super) struct TensorRule {
    /// Its name with its ending, or without for all endings that the stored one has.
    pub(super) name: Spanned<String>,
    pub(super) when: Option<Expr>,
    /// With `when`: the tensor of the architecture that is used if `when` is false.
    pub(super) otherwise: Option<String>,
    pub(super) made: Made,
    /// The function of each element `x`, or of the index `i` if nothing is stored.
    pub(super) each: Option<Expr>,
    /// Whether each row is divided by its Euclidean length.
    pub(super) unit_rows: bool,
}

#[derive(Clone, Debug)]
pub(super) enum Made {
    /// Of stored tensors.
    Of(Composition),
    /// Of an expression: the sizes of the axes, slowest first.
    Computed(Vec<Expr>),
}

/// A tensor made of stored ones.
#[derive(Clone, Debug, Default)]
pub(super) struct Composition {
    /// Concatenated along the slowest axis.
    pub(super) parts: Vec<PartRule>,
    pub(super) repeat: Option<Repeat>,
    /// The tensor whose elements are factors of those of the parts, in the same order.
    pub(super) times: Option<Spanned<String>>,
}

impl Composition {
    /// Whether the parts make a new slowest axis.
    pub(super) fn is_stack(&self) -> bool {
        self.repeat.as_ref().is_some_and(|repeat| repeat.is_stack)
    }
}

/// Names in which `{e}` runs over so many tensors.
#[derive(Clone, Debug)]
pub(super) struct Repeat {
    pub(super) count: Expr,
    /// Whether they make a new slowest axis; else they follow one another along the one that they have.
    pub(super) is_stack: bool,
}

/// A stored tensor, and how its elements are taken.
#[derive(Clone, Debug)]
pub(super) struct PartRule {
    pub(super) from: Spanned<String>,
    pub(super) taken: Taken,
}

/// How the elements of a stored tensor are taken, in this order.
#[derive(Clone, Debug, Default)]
pub(super) struct Taken {
    /// A part of its slowest axis.
    pub(super) rows: Option<(Expr, Expr)>,
    pub(super) rearrange: Option<Spanned<Pattern>>,
    /// Sizes of the notation's axes.
    pub(super) sizes: Expressions,
    /// Parts of the notation's axes.
    pub(super) take: BTreeMap<String, (Expr, Expr)>,
    /// One element of the slowest axis.
    pub(super) at: Option<Expr>,
    /// A part of the slowest axis.
    pub(super) slice: Option<(Expr, Expr)>,
}

impl Taken {
    /// The first key that says anything.
    pub(super) fn word(&self) -> Option<&'static str> {
        let words = [
            ("rows", self.rows.is_some()),
            ("rearrange", self.rearrange.is_some()),
            ("at", self.at.is_some()),
            ("slice", self.slice.is_some()),
        ];
        words
            .into_iter()
            .find(|(_, is_set)| *is_set)
            .map(|(word, _)| word)
    }
}
