//! Logits of a prompt with media: `media FOLDER CASE.json ROWS.f32 WIDTH OUT.f32 [N_CTX] [CHUNK]`.
#![allow(clippy::print_stdout, clippy::print_stderr, clippy::exit, clippy::unwrap_used, reason = "an example")]
use std::sync::Arc;

use lab_core::model::{Batch, FIRST_MEDIA_ID, MediaRows, MediaSpan, Model, Options, SequenceMedia};
use lab_core::models::{Definitions, ModelSource, open};
use lab_core::plan::MediaAttention;

fn main() {
    if let Err(e) = run() {
        eprintln!("{e}");
        std::process::exit(1)
    }
}

fn run() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().collect();
    let with = Definitions::open(&["archs".into(), "stmaps".into()])?;
    let opened = open(&ModelSource::File(args[1].clone().into()), &with)?;
    let case: serde_json::Value = serde_json::from_slice(&std::fs::read(&args[2])?)?;
    let bytes = std::fs::read(&args[3])?;
    let rows: Vec<f32> = bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
    let rows = Arc::new(MediaRows { rows, width: args[4].parse()? });
    let mut tokens: Vec<u32> = case["tokens"].as_array().unwrap().iter().map(|t| t.as_u64().unwrap() as u32).collect();
    let mut spans = Vec::new();
    for span in case["spans"].as_array().unwrap() {
        let get = |key: &str| span[key].as_u64().unwrap() as u32;
        let (at, n, from) = (get("at"), get("n"), get("from"));
        for i in 0..n {
            tokens[(at + i) as usize] = FIRST_MEDIA_ID + from + i;
        }
        let grid = span["grid"].as_array().map(|g| std::array::from_fn(|i| g[i].as_u64().unwrap() as u32));
        spans.push(MediaSpan { at, n, first_id: FIRST_MEDIA_ID + from, rows: Arc::clone(&rows), from: from as usize, grid });
    }
    let towers = lab_core::models::towers::open_towers(&ModelSource::File(args[1].clone().into()), &with)?;
    let attention = towers.first().map_or(MediaAttention::Causal, |tower| tower.plan.media_attention());
    let media = Arc::new(SequenceMedia::new(spans, attention, &tokens)?);
    let n_ctx: usize = args.get(6).map_or(0, |n| n.parse().unwrap());
    let chunk: usize = args.get(7).map_or(tokens.len(), |n| n.parse().unwrap());
    let options = Options {
        n_threads: 2,
        flash_attn: std::env::var("PLAIN").is_err(),
        k_type: lab_base::weights::TensorType::F32,
        v_type: lab_base::weights::TensorType::F32,
        ..Options::plain(n_ctx, tokens.len())
    };
    println!("{}", opened.plan.arch);
    let mut model = Model::load(opened.plan, &opened.weights, options, &mut |_, _| {})?;
    model.set_media(0, media);
    let mut out = Vec::new();
    for (at, part) in tokens.chunks(chunk).enumerate() {
        let mut batch = Batch::default();
        for (i, token) in part.iter().enumerate() {
            batch.push(*token, 0, (at * chunk + i) as u32, true);
        }
        out.extend_from_slice(model.forward(&batch)?);
    }
    let bytes: Vec<u8> = out.iter().flat_map(|v| v.to_le_bytes()).collect();
    std::fs::write(&args[5], bytes)?;
    Ok(())
}
