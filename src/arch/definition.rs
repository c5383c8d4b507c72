//! A definition as read from TOML: every expression parsed, every name still a name.
//!
//! These values are inert. `read` makes them from text, `check` finds what is wrong with them,
//! the planner gives them numbers. The residual wiring of every layer is the slot formula:
//!
//! ```text
//! x  = read ? read(X) : x    X: several hidden states, where a model has them
//! in = from ? tap : x
//! h  = pre(in)
//! y  = sum over active branches of  factor * post_b(block(pre_b(from_b ? tap : h), side ? tap))
//! y  = scale * post(y)
//! x  = join(x, y)            add | set
//! x  = after(x)
//! X  = write ? write(X, x) : X
//! ```

use std::collections::BTreeMap;
use std::sync::Arc;

use super::contract::{Contract, Presence, Resource};
use super::diagnostic::{Span, Spanned};
use super::expr::Expr;

/// How the model is executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Causal attention; completions grow at the end.
    Causal,
    /// Bidirectional attention; completions by text diffusion.
    Diffusion,
    /// Bidirectional attention; the result is an embedding.
    Encoder,
}

impl Mode {
    /// Names in the TOML.
    pub const NAMES: [(&'static str, Self); 3] = [
        ("causal", Self::Causal),
        ("diffusion", Self::Diffusion),
        ("encoder", Self::Encoder),
    ];

    /// Name in the TOML.
    pub fn name(self) -> &'static str {
        Self::NAMES
            .iter()
            .find(|(_, mode)| *mode == self)
            .map_or("", |(name, _)| name)
    }
}

/// One architecture.
#[derive(Clone, Debug)]
pub struct ArchDef {
    /// Value of `general.architecture` in the files it describes; of several names the requested one.
    pub name: String,
    /// All architectures that it describes; the first one is the stem of its own file.
    pub names: Vec<String>,
    /// The comment at the head of the file: what is notable about the family.
    pub notes: String,
    /// How the model is executed.
    pub mode: Mode,
    /// Parameters by name: the common ones and its own.
    pub params: BTreeMap<String, Param>,
    /// Those that it declares, and of the others those that it names.
    pub resources: Resources,
    /// Resources that need no declaration. A name that follows from parameters may be that of any.
    pub defaults: Arc<Resources>,
    /// From token ids to the hidden state.
    pub embed: Instance,
    /// How the embedded tokens become several hidden states, as a mix; none: there is one.
    pub write: Option<Setting>,
    /// A further input for each layer.
    pub per_layer: Option<Instance>,
    /// The stacks of layers, in order.
    pub stacks: Vec<Stack>,
    /// From the hidden state to logits.
    pub head: Option<Head>,
    /// From the hidden states of a sequence to one vector.
    pub pool: Instance,
    /// Conditions on a file's numbers, evaluated for every layer; if one is false, the definition
    /// is wrong for the file.
    pub require: Vec<Spanned<Expr>>,
    /// What a file may hold that nothing reads.
    pub ignore: Ignore,
    /// Models that it is drawn for, by names: `KEY=VALUE` sets a parameter, another word is an optional
    /// tensor without its `.weight`. `default` is the first one.
    pub variants: BTreeMap<String, String>,
    /// Where it was read from, for messages.
    pub text: Arc<Text>,
}

impl ArchDef {
    /// Whether sequences have a source.
    pub fn reads_source(&self) -> bool {
        self.stacks.iter().any(|stack| stack.reads == Reads::Source)
    }

    /// A resource by its name: a declared one, or one that needs no declaration.
    pub fn resource(&self, kind: Resource, name: &str) -> Option<&Instance> {
        let key = (kind, name.to_owned());
        self.resources.get(&key).or_else(|| self.defaults.get(&key))
    }

    /// The names of the resources of a kind, declared ones first.
    pub fn resource_names(&self, kind: Resource) -> impl Iterator<Item = &str> {
        names_of(kind, &self.resources, &self.defaults)
    }
}

/// The text of a definition.
#[derive(Debug, Default)]
pub struct Text {
    /// What names it in messages.
    pub path: String,
    /// The TOML.
    pub source: String,
}

/// What a file may hold that nothing reads, without a warning. In names and keys, `*` stands for
/// anything.
#[derive(Clone, Debug, Default)]
pub struct Ignore {
    /// Names of tensors.
    pub tensors: Vec<String>,
    /// Metadata keys relative to `<arch>.`.
    pub keys: BTreeMap<String, Ignored>,
}

/// A key that does not matter.
#[derive(Clone, Debug)]
pub struct Ignored {
    /// Why not.
    pub reason: String,
    /// Whether all definitions ignore it.
    pub is_common: bool,
}

/// Resources by kind and name.
pub type Resources = BTreeMap<(Resource, String), Instance>;

/// The names of the resources of a kind, declared ones first.
pub(super) fn names_of<'a>(
    kind: Resource,
    declared: &'a Resources,
    defaults: &'a Resources,
) -> impl Iterator<Item = &'a str> {
    let others = defaults.keys().filter(|key| !declared.contains_key(key));
    let all = declared.keys().chain(others);
    let all = all.filter(move |(known, _)| *known == kind);
    all.map(|(_, name)| name.as_str())
}

/// What all definitions have in common.
#[derive(Clone, Debug, Default)]
pub struct Common {
    /// Parameters by name.
    pub params: BTreeMap<String, Param>,
    /// Resources that need no declaration: those of the common part, and every kind that says all.
    pub resources: Arc<Resources>,
    /// Keys that do not matter in any of them.
    pub ignore: Ignore,
}

/// A number or a name that the definition computes with.
#[derive(Clone, Debug)]
pub struct Param {
    /// Where its value comes from.
    pub source: ParamSource,
    /// Where it is declared; `None` for the common ones.
    pub span: Option<Span>,
    /// For a value that follows from the model's size because files do not state it: the reason.
    pub assumption: Option<String>,
}

/// Where a parameter's value comes from.
#[derive(Clone, Debug)]
pub enum ParamSource {
    /// From other parameters.
    Derived(Expr),
    /// From the model file.
    Key {
        /// Metadata keys, the first that is set wins; relative to `<arch>.` unless absolute.
        keys: Vec<String>,
        /// Whether the keys stand as they are.
        absolute: bool,
        /// Value if no key is set; without one a missing key is an error.
        default: Option<Expr>,
        /// Whether a zero counts as a value rather than as unset.
        zero_is_value: bool,
        /// Value in a random model.
        synth: Option<Expr>,
    },
}

/// A use of a contract: a block, a stage or a resource with its settings.
#[derive(Clone, Debug)]
pub struct Instance {
    /// What it is a use of.
    pub contract: &'static Contract,
    /// The options in the order of the contract, with the contract's defaults.
    pub options: Vec<Setting>,
    /// The weights in the order of the contract.
    pub weights: Vec<WeightUse>,
    /// The contract's rules, parsed.
    pub rules: Vec<Expr>,
    /// Elements of the rows of the second input, parsed.
    pub side: Option<Expr>,
    /// Sizes of the state's rows, parsed, in the order of the state's fields.
    pub state: Vec<Expr>,
    /// Where it stands; for messages.
    pub span: Span,
}

/// The expression of one option.
#[derive(Clone, Debug)]
pub struct Setting {
    /// What gives the value.
    pub expr: Expr,
    /// Where the definition sets it; `None` for a contract's default, which may refer to other
    /// options.
    pub span: Option<Span>,
}

/// One weight of an instance.
#[derive(Clone, Debug)]
pub struct WeightUse {
    /// Name of the tensor, relative to the layer's prefix, or after [`OF_FILE`] to the file.
    pub tensor: String,
    /// When it belongs to the instance.
    pub when: Expr,
    /// Dimensions.
    pub shape: Vec<Expr>,
    /// Whether it must be there, may be, or must not be read.
    pub presence: Presence,
}

/// A sequence of layers.
#[derive(Clone, Debug)]
pub struct Stack {
    /// Name in value paths.
    pub name: String,
    /// Where it is named, or stands.
    pub name_span: Span,
    /// Prefix of its tensors; `{il}` stands for the layer of the file.
    pub prefix: String,
    /// Where the prefix is given, or the stack stands.
    pub prefix_span: Span,
    /// Number of layers.
    pub count: Expr,
    /// The layer of the file, an expression over `depth`; none: `depth`.
    pub il: Option<Setting>,
    /// The tokens whose hidden states it computes.
    pub reads: Reads,
    /// What each layer does, in order.
    pub slots: Vec<Slot>,
}

/// The tokens that a stack reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reads {
    /// Those of the sequence, which completions extend.
    Tokens,
    /// Those of another text, the source of the sequence, all of which are there before its first token.
    Source,
}

impl Reads {
    /// Names in the TOML.
    pub const NAMES: [(&'static str, Self); 2] =
        [("tokens", Self::Tokens), ("source", Self::Source)];
}

/// One sublayer: see the formula of the module.
#[derive(Clone, Debug)]
pub struct Slot {
    /// Name in value paths.
    pub name: String,
    /// Where it stands.
    pub span: Span,
    /// Layers that have it; none: all.
    pub when: Option<Expr>,
    /// How one hidden state is read of several, as a mix; none: the one there is.
    pub read: Option<Setting>,
    /// Tap it reads instead of the hidden state.
    pub from: Option<Spanned<String>>,
    /// Norm before, as a name.
    pub pre: Option<Setting>,
    /// The branches; those whose `when` holds are summed.
    pub branches: Vec<Branch>,
    /// Norm after the sum.
    pub post: Option<Setting>,
    /// Factor of the sum.
    pub scale: Option<Setting>,
    /// How the sum joins the hidden state.
    pub join: Join,
    /// Norm after joining.
    pub after: Option<Setting>,
    /// How the several hidden states are written, as a mix.
    pub write: Option<Setting>,
}

/// The end of the model: a norm, then the projection to logits.
#[derive(Clone, Debug)]
pub struct Head {
    /// How one hidden state is read of several, as a mix.
    pub read: Option<Setting>,
    /// Final norm, as a name.
    pub norm: Option<Setting>,
    /// Projection and what follows it.
    pub unit: Instance,
}

/// How a slot's result joins the hidden state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Join {
    /// Added to it.
    Add,
    /// Replaces it.
    Set,
}

/// One branch of a slot.
#[derive(Clone, Debug)]
pub struct Branch {
    /// Name in value paths.
    pub name: String,
    /// Layers that have it; none: all.
    pub when: Option<Expr>,
    /// Tap it reads instead of the slot's normed input.
    pub from: Option<Spanned<String>>,
    /// Tap that the block reads in addition to its input.
    pub side: Option<Spanned<String>>,
    /// Norm before the block.
    pub pre: Option<Setting>,
    /// Norm after the block.
    pub post: Option<Setting>,
    /// Factor of the result.
    pub factor: Option<Setting>,
    /// Tap under which the result stays readable.
    pub save: Option<Spanned<String>>,
    /// The block.
    pub block: Instance,
}

/// Begins the name of a tensor of the file, as opposed to one of the layer.
pub const OF_FILE: char = '/';

/// The names that stand for the layer: `il` is the layer of the file, whose tensors and metadata are used,
/// `depth` the place in the stack. They are equal unless a stack says otherwise.
pub(super) const LAYER: [&str; 2] = ["il", "depth"];

/// The names that a place of use gives to contracts: the width of a norm, the place of a mix and the hidden states there.
pub(super) const GIVEN: [&str; 3] = ["width", "place", "states"];

/// The parameter of text diffusion: whether the logits at a position predict the next token.
pub const SHIFT_LOGITS: &str = "shift_logits";

/// The parameter of models that read a source: the token with which every completion starts.
pub const START_TOKEN: &str = "start_token";

/// Taps that exist without being saved.
pub const TAPS: [&str; 5] = ["x", "h", "layer_in", "embd", "ple"];

/// Whether a name fits a pattern in which `*` stands for anything.
pub fn fits_pattern(pattern: &str, name: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(mut rest) = parts.next().and_then(|first| name.strip_prefix(first)) else {
        return false;
    };
    let parts: Vec<&str> = parts.collect();
    let Some((last, middle)) = parts.split_last() else {
        return rest.is_empty();
    };
    for part in middle {
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    rest.ends_with(last)
}
