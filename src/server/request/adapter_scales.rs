//! `lora` of a request: adapters and their scales.

use serde::Deserialize;

use super::object_fields::ObjectFields;
use crate::http::error::{Error, invalid, refuse};

const MAX_NAMED: usize = 1024;

#[derive(Clone, Copy, Debug, Deserialize)]
pub(crate) struct AdapterScale {
    id: usize,
    scale: f64,
}

/// The fields of an adapter; a list that was read from this server names its file too.
pub(crate) const ADAPTER_SCALE: ObjectFields = ObjectFields {
    idle: "path",
    ..ObjectFields::of("id scale")
};

pub(crate) fn distinct_scales(list: &[AdapterScale]) -> Result<Vec<(usize, f32)>, Error> {
    let mut out: Vec<(usize, f32)> = Vec::new();
    for scaled in list {
        if out.iter().any(|(id, _)| *id == scaled.id) {
            let message = format!("`lora`: the adapter {} is named twice", scaled.id);
            return invalid("lora", message);
        }
        if out.len() == MAX_NAMED {
            return refuse("lora", format!(": more than {MAX_NAMED} adapters"));
        }
        out.push((scaled.id, scaled.scale as f32));
    }
    Ok(out)
}
