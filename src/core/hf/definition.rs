//! A map as read from TOML.

use std::collections::BTreeMap;

use serde_json::Value as Json;

use crate::arch::expr::Expr;
use crate::arch::{SourceFile, Span, Spanned};

use super::json::object;
use super::rearrange::Pattern;

/// Expressions by name.
pub(super) type Expressions = BTreeMap<String, Expr>;

/// A map from one kind of folder to one architecture.
#[derive(Clone, Debug, Default)]
pub(super) struct Map {
    /// The architecture of the resulting tensors and parameters; none if the map leads to a text model.
    pub(super) arch: Option<Spanned<Expr>>,
    /// Names in `architectures` of the configuration.
    pub(super) classes: Vec<Spanned<String>>,
    /// Names in `model_type` of the configuration of a text model within another model.
    pub(super) types: Vec<Spanned<String>>,
    /// The text model within models of these classes; a map with one has no architecture.
    pub(super) text: Option<TextModel>,
    /// The name of the map that it extends.
    pub(super) extends: Option<Spanned<String>>,
    /// The map that it extends, and its text.
    pub(super) base: Option<Box<(SourceFile, Self)>>,
    /// Endings of classes, each with the endings of the classes whose maps also serve them.
    pub(super) endings: BTreeMap<String, Vec<String>>,
    /// Prefixes of all stored names; the first one that the folder has is used.
    pub(super) roots: Vec<String>,
    /// Objects of the configuration; the keys of the first one that is present come first.
    pub(super) nested: Vec<String>,
    /// Keys whose value outside the nested object takes precedence over the value in it.
    pub(super) outer: Vec<String>,
    /// Further places of a key, or of all keys of an object.
    pub(super) aliases: BTreeMap<String, Vec<String>>,
    /// Prefixes of stored names that only some versions of a folder have.
    pub(super) prefixes: Vec<String>,
    /// Values of keys that a configuration may omit. A key that is not read has no effect if it has this value.
    pub(super) defaults: BTreeMap<String, DefaultValue>,
    /// The meaning of keys that maps do not read, for messages.
    pub(super) meanings: BTreeMap<String, String>,
    /// Warnings about parts that are not computed, each with its condition.
    pub(super) notes: Vec<(String, Requirement)>,
    /// Named values for other expressions.
    pub(super) values: Expressions,
    /// Conditions on the configuration.
    pub(super) rules: Vec<Requirement>,
    /// Parameters of the architecture.
    pub(super) params: Vec<ParamRule>,
    /// Metadata that only other engines read.
    pub(super) metadata: Vec<ParamRule>,
    pub(super) groups: Vec<TensorGroup>,
    /// Stored tensors that are ignored (`*` stands for any characters).
    pub(super) ignored_tensors: Vec<Spanned<String>>,
    /// Parts of a model that are not needed for text, with the tensors of each (`*` stands for any characters).
    pub(super) parts: Vec<(String, Vec<Spanned<String>>)>,
    /// Keys of the configuration that are ignored.
    pub(super) ignored_keys: Vec<Spanned<String>>,
    /// Whether keys outside the nested object belong to other parts of the model.
    pub(super) is_part: bool,
    /// What the configuration files of a folder with a processor would say, for models that have none.
    pub(super) processor: Vec<ParamRule>,
    /// What has the keys, for messages.
    pub(super) configuration: &'static str,
    /// Whether the map is for a tower, beside which the folder has other parts.
    pub(super) is_tower: bool,
}

impl Map {
    /// This map and those that it extends, the nearest first. Rules of an earlier one take precedence.
    pub(super) fn chain(&self) -> impl Iterator<Item = &Self> {
        std::iter::successors(Some(self), |map| Some(&map.base.as_ref()?.1))
    }

    /// The first of the nested objects that a configuration has, with its name.
    pub(super) fn nested_in<'j>(&self, json: &'j Json) -> Option<(&str, &'j Json)> {
        let mut nested = self.nested.iter();
        nested.find_map(|name| {
            let object = object(json, name).filter(|value| value.is_object())?;
            Some((name.as_str(), object))
        })
    }

    /// The texts of the maps that it extends, the nearest first.
    pub(super) fn base_sources(&self) -> impl Iterator<Item = &SourceFile> {
        let bases = self.chain().filter_map(|map| map.base.as_ref());
        bases.map(|base| &base.0)
    }

    /// The map with what it inherits: of the map that it extends, or of the part that all maps share. Its own entries take
    /// precedence. Rules, parameters and tensors are not copied: they stay in the [chain](Self::chain), each at its place.
    pub(super) fn completed(mut self, base: Option<(SourceFile, Self)>, common: &Self) -> Self {
        // What all maps share is in the base already.
        let from = base.as_ref().map_or(common, |(_, base)| base);
        if self.arch.is_none() && self.text.is_none() {
            self.arch.clone_from(&from.arch);
            self.text.clone_from(&from.text);
        }
        if self.roots.is_empty() {
            self.roots.clone_from(&from.roots);
        }
        if self.roots.is_empty() {
            self.roots.push(String::new());
        }
        if self.nested.is_empty() {
            self.nested.clone_from(&from.nested);
        }
        if self.outer.is_empty() {
            self.outer.clone_from(&from.outer);
        }
        self.endings.clone_from(&common.endings);
        add(&mut self.defaults, &from.defaults);
        add(&mut self.values, &from.values);
        add(&mut self.aliases, &from.aliases);
        add(&mut self.meanings, &from.meanings);
        self.prefixes.extend(from.prefixes.iter().cloned());
        self.parts.extend(from.parts.iter().cloned());
        self.ignored_keys.extend(from.ignored_keys.iter().cloned());
        self.ignored_tensors
            .extend(from.ignored_tensors.iter().cloned());
        self.base = base.map(Box::new);
        self
    }

    /// The architectures that folders of this map may have.
    pub(super) fn archs(&self) -> Vec<String> {
        let mut names = Vec::new();
        if let Some(arch) = &self.arch {
            arch.value
                .for_each_text_result(&mut |name| names.push(name.to_owned()));
        }
        names
    }
}

/// Adds inherited entries; own entries take precedence.
fn add<T: Clone>(own: &mut BTreeMap<String, T>, inherited: &BTreeMap<String, T>) {
    for (name, value) in inherited {
        own.entry(name.clone()).or_insert_with(|| value.clone());
    }
}

/// The place of the text model within a multimodal model.
#[derive(Clone, Debug)]
pub(super) struct TextModel {
    /// Objects that may be its configuration; if none exists, the whole configuration is used.
    pub(super) objects: Vec<String>,
    /// Its class, if neither `architectures` nor `model_type` of the object is known.
    pub(super) class: Option<Expr>,
    /// Prefixes of its tensors, each with the prefixes that are stored in its place.
    pub(super) names: BTreeMap<String, Vec<String>>,
}

/// The value of a key that a configuration omits.
#[derive(Clone, Debug)]
pub(super) struct DefaultValue {
    /// The value if the key is absent.
    pub(super) absent: Option<Expr>,
    /// The value if the key is `null`.
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
pub(super) struct ParamRule {
    pub(super) name: Spanned<String>,
    pub(super) value: ParamValue,
    /// The condition under which it is set.
    pub(super) when: Option<Expr>,
    /// Whether the value is a list with one value for each layer.
    pub(super) per_layer: bool,
    /// Whether it stays unset if the configuration lacks a key.
    pub(super) is_optional: bool,
}

/// The value of a parameter.
#[derive(Clone, Debug)]
pub(super) enum ParamValue {
    One(Expr),
    List(Vec<Expr>),
    /// The numbers of a stored tensor.
    Stored(String),
}

/// Tensors that exist once, or once for each layer.
#[derive(Clone, Debug, Default)]
pub(super) struct TensorGroup {
    /// Number of layers, and the first layer; none: the tensors exist once.
    pub(super) layers: Option<(Spanned<Expr>, Option<Spanned<Expr>>)>,
    /// Prefix in the architecture.
    pub(super) prefix: String,
    /// Prefix of stored names.
    pub(super) from: String,
    pub(super) tensors: Vec<TensorRule>,
}

/// The rule by which a tensor of the architecture is made.
#[derive(Clone, Debug)]
pub(super) struct TensorRule {
    /// The name with its ending, or without it for all endings that the stored tensor has.
    pub(super) name: Spanned<String>,
    pub(super) when: Option<Expr>,
    /// The tensor of the architecture that is used if `when` is false.
    pub(super) otherwise: Option<String>,
    pub(super) made: TensorOrigin,
    /// The function of each element `x`, or of the index `i` if the tensor is computed.
    pub(super) each: Option<Expr>,
    /// Whether each row is divided by its Euclidean length.
    pub(super) unit_rows: bool,
}

#[derive(Clone, Debug)]
pub(super) enum TensorOrigin {
    /// From stored tensors.
    Of(Composition),
    /// From an expression: the sizes of the axes, slowest first.
    Computed(Vec<Expr>),
}

/// A tensor made of stored tensors.
#[derive(Clone, Debug, Default)]
pub(super) struct Composition {
    /// The parts, which are concatenated along the slowest axis, or side by side along the fastest one.
    pub(super) parts: Vec<PartRule>,
    pub(super) repeat: Option<Repeat>,
    /// Whether the parts stand side by side in each row.
    pub(super) is_beside: bool,
    /// The stored tensor whose elements are factors of the elements of the parts, in the same order.
    pub(super) times: Option<Spanned<String>>,
}

impl Composition {
    /// Whether the parts make a new slowest axis.
    pub(super) fn is_stack(&self) -> bool {
        self.repeat.as_ref().is_some_and(|repeat| repeat.is_stack)
    }
}

/// A repetition: names in which `{e}` counts the tensors.
#[derive(Clone, Debug)]
pub(super) struct Repeat {
    /// The first number; none: 0.
    pub(super) first: Option<Expr>,
    pub(super) count: Expr,
    /// Whether they make a new slowest axis; otherwise they are concatenated along their slowest axis.
    pub(super) is_stack: bool,
}

/// A stored tensor, and the selection and order of its elements.
#[derive(Clone, Debug)]
pub(super) struct PartRule {
    pub(super) from: Spanned<String>,
    pub(super) taken: ElementSlice,
}

/// The selection and order of a stored tensor's elements; the steps apply in this order.
#[derive(Clone, Debug, Default)]
pub(super) struct ElementSlice {
    /// A range of the slowest axis, before the rearrangement.
    pub(super) rows: Option<(Expr, Expr)>,
    pub(super) rearrange: Option<Spanned<Pattern>>,
    /// Sizes of axes in the notation.
    pub(super) sizes: Expressions,
    /// Ranges of axes in the notation.
    pub(super) take: BTreeMap<String, (Expr, Expr)>,
    /// One index of the slowest axis.
    pub(super) at: Option<Expr>,
    /// A range of the slowest axis.
    pub(super) slice: Option<(Expr, Expr)>,
}

impl ElementSlice {
    /// The first key that is set.
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
