//! Contracts: the descriptions of blocks, stages and resources, as data.
//!
//! Every block, stage and resource states its options, weights, state and rules in one [`Contract`]. The checker, the
//! planner, the reference documentation and the diagrams read only this table, so none of them refers to a block by
//! name. Shapes, defaults and rules are expressions over the options and the parameters, so they can be shown as
//! symbols and evaluated as numbers.

use super::expr::Value;
use super::point::PointSpec;
use super::state::StateSpec;

/// The description of a block, stage or resource.
#[derive(Debug)]
pub struct Contract {
    /// Name in the TOML, the registry, the file and the documentation.
    pub name: &'static str,
    /// Title in headings.
    pub title: &'static str,
    /// Short name for use in sentences, with its article.
    pub noun: &'static str,
    /// The phrase for one use, in the form of [`Self::formula`]; empty: the noun.
    pub phrase: &'static str,
    /// One sentence for the documentation.
    pub summary: &'static str,
    /// The computation in the contract's own names, with conditions as [`super::formula`] reads them.
    pub formula: &'static str,
    /// Options, in the order of the documentation.
    pub options: &'static [OptionSpec],
    /// Weights, in the order of their use.
    pub weights: &'static [WeightSpec],
    /// Number of elements of the rows of input and result.
    pub rows: RowWidth,
    /// The second input of a branch; none if the block takes one input.
    pub side: Option<SideInput>,
    /// Whether the block works on the grid of a tower's rows, which tokens do not have.
    pub is_of_towers: bool,
    /// Whether the block reads rows of media: a pass without media leaves it out.
    pub is_of_media: bool,
    /// State that is stored between passes.
    pub state: StateSpec,
    /// The points, in the order of computation.
    pub points: &'static [PointSpec],
    /// Conditions on the resolved options.
    pub rules: &'static [ContractRule],
}

impl Contract {
    /// What most blocks have: rows of the hidden state, one input, and neither weights, state, points nor rules.
    pub const BLOCK: Self = Self {
        name: "",
        title: "",
        noun: "",
        phrase: "",
        summary: "",
        formula: "",
        options: &[],
        weights: &[],
        rows: RowWidth::Hidden,
        side: None,
        is_of_towers: false,
        is_of_media: false,
        state: StateSpec::None,
        points: &[],
        rules: &[],
    };

    /// The noun without its article.
    pub fn short(&self) -> &'static str {
        let rest = self.noun.strip_prefix("an ");
        rest.or(self.noun.strip_prefix("a ")).unwrap_or(self.noun)
    }

    /// Whether the keys are made of the second input, which may then be the source.
    pub fn takes_source(&self) -> bool {
        self.side.is_some() && matches!(self.state, StateSpec::KeyValue { .. })
    }

    /// The option of this name.
    pub fn option(&self, name: &str) -> Option<&'static OptionSpec> {
        self.options.iter().find(|o| o.name == name)
    }

    /// The kinds of a resource that can be used without a declaration: all other options have defaults, and no weight
    /// is required.
    pub fn plain_kinds(&self) -> &'static [&'static str] {
        let is_kind = |option: &&OptionSpec| option.name == "kind" && option.default.is_none();
        let has_default = |option: &&OptionSpec| option.default.is_some();
        let kind = self.options.iter().find(is_kind);
        let n_others = self.options.iter().filter(has_default).count();
        let is_needed = |weight: &WeightSpec| weight.presence == Presence::Required;
        match kind.map(|option| option.kind) {
            Some(OptionKind::Choice(names))
                if n_others + 1 == self.options.len() && !self.weights.iter().any(is_needed) =>
            {
                names
            }
            _ => &[],
        }
    }

    /// The kind of this name, if it needs neither a declaration nor weights.
    pub fn bare_kind(&self, name: &str) -> Option<&'static str> {
        let mut kinds = self.plain_kinds().iter().copied();
        kinds.find(|kind| *kind == name && self.weights.is_empty())
    }

    /// The weight with this key.
    pub fn weight(&self, key: &str) -> Option<&'static WeightSpec> {
        self.weights.iter().find(|w| w.key == key)
    }
}

/// Number of elements of the rows that a block reads and computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowWidth {
    /// As many as the hidden state has.
    Hidden,
    /// Any number; the result has as many as the input.
    Any,
    /// Any number; the result has as many as this expression over options and parameters gives.
    To(&'static str),
}

/// The second input of a branch.
#[derive(Clone, Copy, Debug)]
pub struct SideInput {
    /// Number of elements of the rows, an expression over options and parameters.
    pub width: &'static str,
    /// The purpose of the input.
    pub doc: &'static str,
}

/// One option of a contract.
#[derive(Debug)]
pub struct OptionSpec {
    /// Name in the TOML.
    pub name: &'static str,
    /// The kind of its values.
    pub kind: OptionKind,
    /// Expression over options and parameters, or none if the definition must state it.
    pub default: Option<&'static str>,
    /// Whether the value always follows from `default`: no definition sets it.
    pub is_derived: bool,
    /// The condition under which the option has an effect: an expression over the options and the presence of weights.
    pub when: &'static str,
    /// One phrase for the documentation.
    pub doc: &'static str,
}

/// The kinds of values of an option. Each value may be given as an expression.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OptionKind {
    /// A whole number of at least 0.
    Int,
    /// A finite number.
    Float,
    /// Whole numbers of at least 0, from a parameter that the file has as a list.
    List,
    /// True or false.
    Bool,
    /// One of a set of names.
    Choice(&'static [&'static str]),
    /// The name of a declared resource, or `none`.
    Resource(Resource),
}

/// Kinds of resources, which a definition declares once and names where they are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Resource {
    /// A normalisation.
    Norm,
    /// An activation.
    Act,
    /// A rotary position embedding.
    Rope,
    /// An attention view.
    Cache,
    /// A selection among the keys that a query attends to.
    Selection,
    /// A mix: how several hidden states are made, read as one and written back.
    Mix,
}

impl Resource {
    /// All kinds of resources.
    pub const ALL: [Self; 6] = [
        Self::Norm,
        Self::Act,
        Self::Rope,
        Self::Cache,
        Self::Selection,
        Self::Mix,
    ];

    /// Name of the table that declares resources of this kind.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Norm => "norm",
            Self::Act => "act",
            Self::Rope => "rope",
            Self::Cache => "cache",
            Self::Selection => "selection",
            Self::Mix => "mix",
        }
    }
}

/// One weight of a contract.
#[derive(Debug)]
pub struct WeightSpec {
    /// Key in the TOML's `weights` and in the block.
    pub key: &'static str,
    /// Name of the tensor unless the definition renames it. A `.bias` follows the renaming of
    /// the weight it belongs to.
    pub tensor: &'static str,
    /// Dimensions in ggml order, as expressions over options and parameters.
    pub shape: &'static [&'static str],
    /// The condition under which the instance has the weight: an expression over options and the presence of other
    /// weights. `true` for most.
    pub when: &'static str,
    /// Whether the weight must exist, unless a definition says otherwise.
    pub presence: Presence,
    /// Whether a definition may forbid the weight.
    pub may_forbid: bool,
    /// The role, which decides how `synth` fills the weight, and whether it is quantised.
    pub role: WeightRole,
    /// Whether a matrix or table may be quantised.
    pub is_quantised: bool,
    /// Keys of the weights whose rows this weight consists of, one after another; empty: it has its own rows.
    pub parts: &'static [&'static str],
    /// One phrase for the documentation.
    pub doc: &'static str,
}

impl WeightSpec {
    /// A required weight without a condition.
    pub const fn new(
        role: WeightRole,
        key: &'static str,
        tensor: &'static str,
        shape: &'static [&'static str],
        doc: &'static str,
    ) -> Self {
        Self {
            key,
            tensor,
            shape,
            when: "true",
            presence: Presence::Required,
            // A norm needs no weight.
            may_forbid: matches!(role, WeightRole::Scale),
            role,
            is_quantised: true,
            parts: &[],
            doc,
        }
    }

    /// A matrix or table that a quantiser leaves in the type of the file.
    #[must_use]
    pub const fn never_quantised(self) -> Self {
        Self {
            is_quantised: false,
            ..self
        }
    }

    /// Sets the weights, by their keys, whose rows this weight consists of, one after another.
    #[must_use]
    pub const fn made_of(self, parts: &'static [&'static str]) -> Self {
        Self { parts, ..self }
    }

    /// Makes the weight optional.
    #[must_use]
    pub const fn optional(self) -> Self {
        Self {
            presence: Presence::Optional,
            may_forbid: true,
            ..self
        }
    }

    /// Makes the weight required unless a definition forbids it.
    #[must_use]
    pub const fn unless_forbidden(self) -> Self {
        Self {
            may_forbid: true,
            ..self
        }
    }

    /// Sets the condition under which the instance has the weight.
    #[must_use]
    pub const fn when(self, when: &'static str) -> Self {
        Self { when, ..self }
    }
}

/// Whether a weight must exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// The weight must exist.
    Required,
    /// The weight is used if it exists.
    Optional,
    /// The weight is not used, whether it exists or not.
    Forbidden,
}

/// The role of a weight, for random models and for the choice of a quantisation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeightRole {
    /// A matrix of a projection.
    Matrix,
    /// A table whose rows are looked up.
    Table,
    /// Weight of a norm, or another vector that multiplies, near one.
    Scale,
    /// A vector that is added, near zero.
    Bias,
    /// Positive factors of rotation frequencies.
    Factors,
    /// A convolution over time, one kernel for each channel.
    Convolution,
    /// Exponents of a decay, negative.
    Decay,
    /// Integers from 0 (i32) that name rows or experts, below the number that the option of this name gives.
    Ids(&'static str),
}

/// A condition on the resolved options of an instance.
#[derive(Debug)]
pub struct ContractRule {
    /// The condition, which must be true.
    pub holds: &'static str,
    /// The problem if the condition is false.
    pub message: &'static str,
}

/// A Rust value to which an option resolves.
pub trait OptionValue: Sized {
    /// The kind of the option in the contract.
    const KIND: OptionKind;
    /// The value of an option of this kind, as the planner resolved it.
    fn read(resolved: &ResolvedOption) -> Option<Self>;
}

#[derive(Clone, Debug, PartialEq)]
pub enum ResolvedOption {
    /// A value of [`OptionKind::Int`].
    Int(u64),
    /// A value of [`OptionKind::Float`].
    Float(f64),
    /// A value of [`OptionKind::List`].
    List(Vec<u64>),
    /// A value of [`OptionKind::Bool`].
    Bool(bool),
    /// A value of [`OptionKind::Choice`].
    Choice(&'static str),
    /// A value of [`OptionKind::Resource`]: the place in the plan's table, or none.
    Resource(Option<usize>),
}

impl ResolvedOption {
    /// The value in contract expressions.
    pub fn to_value(&self) -> Value {
        let int = |v: u64| Value::Int(i64::try_from(v).unwrap_or(i64::MAX));
        match self {
            Self::Int(v) => int(*v),
            Self::Float(v) => Value::Float(*v),
            Self::List(all) => Value::List(all.iter().map(|v| int(*v)).collect()),
            Self::Bool(v) => Value::Bool(*v),
            Self::Choice(v) => Value::Str((*v).to_owned()),
            Self::Resource(v) => Value::Bool(v.is_some()),
        }
    }
}

macro_rules! option_values {
    ($( $ty:ty: $kind:ident, $pattern:pat => $value:expr; )*) => { $(
        impl OptionValue for $ty {
            const KIND: OptionKind = OptionKind::$kind;
            fn read(resolved: &ResolvedOption) -> Option<Self> {
                match resolved {
                    $pattern => Some($value),
                    _ => None,
                }
            }
        }
    )* };
}

option_values! {
    u64: Int, ResolvedOption::Int(v) => *v;
    f32: Float, ResolvedOption::Float(v) => *v as Self;
    Vec<u64>: List, ResolvedOption::List(all) => all.clone();
    bool: Bool, ResolvedOption::Bool(v) => *v;
}

macro_rules! resource_refs {
    ($( $(#[$doc:meta])* $name:ident = $resource:ident; )*) => { $(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $name(pub Option<usize>);

        impl OptionValue for $name {
            const KIND: OptionKind = OptionKind::Resource(Resource::$resource);
            fn read(resolved: &ResolvedOption) -> Option<Self> {
                match *resolved {
                    ResolvedOption::Resource(index) => Some(Self(index)),
                    _ => None,
                }
            }
        }
    )* };
}

resource_refs! {
    /// Place of a norm in the plan, or none.
    NormRef = Norm;
    /// Place of an activation in the plan, or none.
    ActRef = Act;
    /// Place of a rope in the plan, or none.
    RopeRef = Rope;
    /// Place of a cache in the plan, or none.
    CacheRef = Cache;
    /// Place of a selection in the plan, or none.
    SelectionRef = Selection;
}

/// Declares an enum of named option values.
#[macro_export]
macro_rules! choices {
    ($(#[$doc:meta])* $vis:vis enum $name:ident { $( $(#[$vdoc:meta])* $variant:ident = $text:literal, )* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        $vis enum $name { $( $(#[$vdoc])* $variant, )* }

        impl $crate::arch::OptionValue for $name {
            const KIND: $crate::arch::OptionKind = $crate::arch::OptionKind::Choice(&[$($text),*]);
            fn read(resolved: &$crate::arch::ResolvedOption) -> Option<Self> {
                match resolved {
                    $( $crate::arch::ResolvedOption::Choice($text) => Some(Self::$variant), )*
                    _ => None,
                }
            }
        }
    };
}

/// Declares the options of a contract and the struct to which they resolve, once: `OPTIONS` is the table, `read` makes
/// the struct from a planned unit.
///
/// A definition must state a field without a default. A field with `=>` follows from parameters and the file, and a
/// definition does not set it. `when` is the condition under which the field has an effect.
#[macro_export]
macro_rules! options {
    ($(#[$doc:meta])* $vis:vis struct $name:ident {
        $( $field:ident : $ty:ty $(= $default:literal)? $(=> $derived:literal)?
           $(, when $when:literal)? , $fdoc:literal ; )*
    }) => {
        $(#[$doc])*
        #[derive(Clone, Debug)]
        #[allow(dead_code, reason = "some options only size weights")]
        $vis struct $name { $( #[doc = $fdoc] $vis $field: $ty, )* }

        impl $name {
            /// The options as the contract states them.
            $vis const OPTIONS: &'static [$crate::arch::OptionSpec] = &[ $(
                $crate::arch::OptionSpec {
                    name: stringify!($field),
                    kind: <$ty as $crate::arch::OptionValue>::KIND,
                    default: $crate::options!(@default $($default)? $($derived)?),
                    is_derived: $crate::options!(@is_derived $($derived)?),
                    when: $crate::options!(@when $($when)?),
                    doc: $fdoc,
                },
            )* ];

            /// The options of a planned unit, in the order of the contract.
            #[expect(unused_assignments, reason = "the counter is not read after the last field")]
            #[allow(dead_code, reason = "some options only size weights")]
            $vis fn read(resolved: &[$crate::arch::ResolvedOption]) -> Self {
                let mut at = 0;
                $(
                    let $field = resolved
                        .get(at)
                        .and_then(<$ty as $crate::arch::OptionValue>::read)
                        .expect("the planner resolves every option of the contract to its kind");
                    at += 1;
                )*
                Self { $( $field, )* }
            }
        }
    };
    (@when) => { "true" };
    (@when $when:literal) => { $when };
    (@is_derived) => { false };
    (@is_derived $derived:literal) => { true };
    (@default) => { None };
    (@default $default:literal) => { Some($default) };
}

/// Makes the table of the weights of a contract, one row for each weight:
///
/// ```text
/// KEY: ROLE "NAME OF THE TENSOR" ["DIMENSION", ..] CHANGES, "one phrase for the documentation";
/// down: Matrix "ffn_down.weight" ["width", "n_embd"] when("rank == 0"), "down projection";
/// ..SHARED;
/// ```
/// The role is a variant of [`WeightRole`]. Dimensions are in ggml order, as expressions over options and parameters. The
/// changes are methods of [`WeightSpec`], in their order; without any the weight is required. `SHARED` is a
/// [`WeightSpec`] that several contracts have.
#[macro_export]
macro_rules! weights {
    ($(
        $(
            $($key:ident).+ : $role:ident $(($of:literal))? $tensor:literal [$($dim:literal),+]
            $($change:ident $(($argument:expr))?)* , $doc:literal
        )?
        $(.. $shared:expr)? ;
    )*) => {
        &[ $(
            $($crate::weight!(
                $($key).+ : $role $(($of))? $tensor [$($dim),+] $($change $(($argument))?)* , $doc
            ))?
            $($shared)?
        ),* ]
    };
}

/// Makes one weight of a row as in [`weights!`], without the semicolon.
#[macro_export]
macro_rules! weight {
    (
        $key:ident $(. $part:ident)* : $role:ident $(($of:literal))? $tensor:literal [$($dim:literal),+]
        $($change:ident $(($argument:expr))?)* , $doc:literal
    ) => {
        $crate::arch::WeightSpec::new(
            $crate::arch::WeightRole::$role $(($of))?,
            concat!(stringify!($key) $(, ".", stringify!($part))*),
            $tensor,
            &[$($dim),+],
            $doc,
        )
        $(.$change($($argument)?))*
    };
}

/// Makes the table of the points of a contract, one row for each point, in the order of computation:
///
/// ```text
/// NAME: PARTS ["DIMENSION", ..] CHANGES, "one phrase for the documentation";
/// q: Heads ["d", "heads"] known_as("attn.hook_q"), "queries";
/// ..SHARED;
/// ```
/// The parts of a row are a variant of [`PointParts`](super::PointParts). Dimensions are those for one token in ggml
/// order. The changes are methods of [`PointSpec`]. `SHARED` is a [`PointSpec`] that several contracts have.
#[macro_export]
macro_rules! points {
    ($(
        $(
            $name:ident : $parts:ident [$($dim:literal),+] $($change:ident ($argument:expr))* , $doc:literal
        )?
        $(.. $shared:expr)? ;
    )*) => {
        &[ $(
            $($crate::point!($name : $parts [$($dim),+] $($change($argument))* , $doc))?
            $($shared)?
        ),* ]
    };
}

/// Makes one point of a row as in [`points!`], without the semicolon.
#[macro_export]
macro_rules! point {
    (
        $name:ident : $parts:ident [$($dim:literal),+] $($change:ident ($argument:expr))* , $doc:literal
    ) => {
        $crate::arch::PointSpec::new(
            $crate::arch::PointParts::$parts,
            stringify!($name),
            &[$($dim),+],
            $doc,
        )
        $(.$change($argument))*
    };
}

/// Makes the rules of a contract, one row for each: the condition, and the problem if it is false.
#[macro_export]
macro_rules! rules {
    ($( $holds:literal, $message:literal; )*) => {
        &[ $( $crate::arch::ContractRule { holds: $holds, message: $message } ),* ]
    };
}

/// All contracts of the language.
#[derive(Debug)]
pub struct Registry {
    /// The blocks a branch may run.
    pub blocks: &'static [&'static Contract],
    /// The embedding: token ids to the hidden state.
    pub embed: &'static Contract,
    /// The input rows of a tower.
    pub input: &'static Contract,
    /// A further input for each layer.
    pub per_layer: &'static Contract,
    /// The head: hidden state to logits.
    pub head: &'static Contract,
    /// Pooling: hidden states to the vector of a sequence.
    pub pool: &'static Contract,
    /// Normalisations.
    pub norm: &'static Contract,
    /// Activations.
    pub act: &'static Contract,
    /// Rotary embeddings.
    pub rope: &'static Contract,
    /// Groups of layers with the same attention view.
    pub cache: &'static Contract,
    /// Selections among the keys that a query attends to.
    pub selection: &'static Contract,
    /// Mixes of several hidden states.
    pub mix: &'static Contract,
    /// The points of the wiring between blocks.
    pub wiring: &'static [&'static PointSpec],
}

impl Registry {
    pub fn block(&self, name: &str) -> Option<&'static Contract> {
        self.blocks.iter().copied().find(|c| c.name == name)
    }

    pub fn resource(&self, kind: Resource) -> &'static Contract {
        match kind {
            Resource::Norm => self.norm,
            Resource::Act => self.act,
            Resource::Rope => self.rope,
            Resource::Cache => self.cache,
            Resource::Selection => self.selection,
            Resource::Mix => self.mix,
        }
    }

    /// Every contract.
    pub fn all(&self) -> impl Iterator<Item = &'static Contract> {
        [
            self.embed,
            self.input,
            self.per_layer,
            self.head,
            self.pool,
            self.norm,
            self.act,
            self.rope,
            self.cache,
            self.selection,
            self.mix,
        ]
        .into_iter()
        .chain(self.blocks.iter().copied())
    }
}
