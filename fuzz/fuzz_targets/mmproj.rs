//! A projector file beside the built-in model.
#![no_main]

use std::sync::LazyLock;

use lab_core::models::mmproj::MmprojChoice;
use lab_core::models::towers::open_media;
use lab_core::models::{Definitions, ModelSource, OpenedModel};

static MODEL: LazyLock<OpenedModel> = LazyLock::new(fuzz::model);

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let with = Definitions {
        mmproj: MmprojChoice::File(fuzz::file("mmproj.gguf", bytes)),
        ..fuzz::definitions().clone()
    };
    let model = &*MODEL;
    let _ = open_media(&ModelSource::of(None), &model.weights, &model.plan, &with);
});
