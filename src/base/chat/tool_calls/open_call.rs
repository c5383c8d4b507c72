//! The state of a call whose arguments are being parsed.

use super::header::{ArgumentForm, CallHeader};
use super::json::JsonScan;
use super::json_repair::JsonRepair;
use super::notation::NotationScan;
use super::parameter::ParameterSearch;

#[derive(Clone, Debug)]
pub(super) struct OpenCall {
    pub(super) index: u32,
    pub(super) state: ArgumentState,
    pub(super) tool: usize,
    /// The header of the call, which is still part of the held text.
    pub(super) pending: Option<PendingHeader>,
}

/// A header that counts only if arguments follow.
#[derive(Clone, Debug)]
pub(super) struct PendingHeader {
    pub(super) space: usize,
    pub(super) header: CallHeader,
    /// Whether it follows another call.
    pub(super) is_next: bool,
}

#[derive(Clone, Debug)]
pub(super) enum ArgumentState {
    /// An object: `n` bytes of it were read, and `out` is to be sent.
    Json {
        object: JsonRepair,
        n: usize,
        out: String,
        outer: usize,
    },
    /// An object in a string, of which `n` bytes were searched for its end.
    Quoted {
        scan: JsonScan,
        n: usize,
        outer: usize,
    },
    Notation(NotationScan),
    /// The rest of the objects around the arguments.
    Outer {
        depth: usize,
        scan: Option<JsonScan>,
    },
    /// One parameter after another; these came.
    Parameters {
        keys: Vec<String>,
        search: ParameterSearch,
    },
}

impl OpenCall {
    pub(super) fn new(index: u32, pending: PendingHeader, tool: usize) -> Self {
        let stage = match pending.header.arguments {
            ArgumentForm::Json { outer } => ArgumentState::Json {
                object: JsonRepair::default(),
                n: 0,
                out: String::new(),
                outer,
            },
            ArgumentForm::Quoted { outer } => ArgumentState::Quoted {
                scan: JsonScan::default(),
                n: 0,
                outer,
            },
            ArgumentForm::Notation => ArgumentState::Notation(NotationScan::default()),
            ArgumentForm::Parameters => ArgumentState::Parameters {
                keys: Vec::new(),
                search: ParameterSearch::default(),
            },
            ArgumentForm::Known(_) => ArgumentState::Outer {
                depth: 0,
                scan: None,
            },
        };
        Self {
            index,
            state: stage,
            tool,
            pending: Some(pending),
        }
    }

    /// The number of held bytes before the arguments.
    pub(super) fn before(&self) -> usize {
        let pending = self.pending.as_ref();
        pending.map_or(0, |pending| pending.space + pending.header.used)
    }
}
