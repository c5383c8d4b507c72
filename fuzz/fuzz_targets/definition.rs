//! A definition, planned for a model if it is sound.
#![no_main]

use std::sync::LazyLock;

use lab_core::models::OpenedModel;
use lab_core::plan::Plan;

static MODEL: LazyLock<OpenedModel> = LazyLock::new(fuzz::model);

libfuzzer_sys::fuzz_target!(|text: &str| {
    match fuzz::definitions().archs.check("fuzz.arch.toml", text) {
        Err(problems) => drop(problems.to_string()),
        Ok(def) => {
            let _ = def.to_toml();
            let weights = &MODEL.weights;
            if let Err(error) = Plan::new(&def, weights.metadata(), weights) {
                let _ = error.to_string();
            }
        }
    }
});
