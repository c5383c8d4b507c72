//! Runs the towers of a folder: `tower FOLDER ROWS.f32 N T H W OUT.f32 [NAMES]`, N inputs of T x H x W rows. `MEDIA` and `VALID` (frames)
//! say more of them. `TOKENS` are those of a model that reads the rows as its source; its logits go to OUT.f32.logits.
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "an example")]
use lab_base::weights::TensorType;
use lab_core::model::{Batch, Model, Options, Tower, TowerInput};
use lab_core::models::{Definitions, ModelSource, towers};

fn main() {
    if let Err(e) = run() {
        eprintln!("{e}");
        std::process::exit(1)
    }
}

fn run() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().collect();
    let with = Definitions::open(&["archs".into(), "stmaps".into()])?;
    let media = std::env::var("MEDIA").unwrap_or("image".into());
    for tower in towers::open_towers(&ModelSource::File(args[1].clone().into()), &with)? {
        if format!("{:?}", tower.media).to_lowercase() != media {
            continue;
        }
        let names = args.get(8).is_some();
        let options = Options {
            n_threads: 2,
            capture: names,
            flash_attn: std::env::var("PLAIN").is_err(),
            ..Options::plain(0, 1)
        };
        println!(
            "{} {} unused {:?}",
            tower.plan.arch, tower.plan.n_embd, tower.plan.unclaimed
        );
        let mut tower = Tower::load(tower.plan, &tower.weights, options, &mut |_, _| {})?;
        let bytes = std::fs::read(&args[2])?;
        let rows: Vec<f32> = bytes
            .chunks_exact(4)
            .map(|b| f32::from_le_bytes(b.try_into().unwrap()))
            .collect();
        let valid = std::env::var("VALID").ok().map(|n| n.parse()).transpose()?;
        let n: usize = args[3].parse()?;
        let cells = [args[4].parse()?, args[5].parse()?, args[6].parse()?];
        let inputs: Vec<TowerInput<'_>> = rows
            .chunks_exact(rows.len() / n)
            .map(|rows| TowerInput { rows, cells, valid })
            .collect();
        let all = tower.run(&inputs)?;
        let bytes: Vec<u8> = all
            .iter()
            .flat_map(|r| &r.rows)
            .flat_map(|v| v.to_le_bytes())
            .collect();
        println!("cells {:?}", all[0].cells);
        if let Ok(tokens) = std::env::var("TOKENS") {
            let tokens: Vec<u32> = tokens
                .split(',')
                .map(|id| id.parse())
                .collect::<Result<_, _>>()?;
            logits(
                &args[1],
                &with,
                (&all[0].rows, &tokens),
                &format!("{}.logits", args[7]),
            )?;
        }
        std::fs::write(&args[7], bytes)?;
        if names {
            for value in tower.values()? {
                let sum: f64 = value.elements.iter().map(|v| f64::from(*v).powi(2)).sum();
                println!(
                    "{} {:?} rms {:.6} {:?}",
                    value.path,
                    value.shape,
                    (sum / value.elements.len() as f64).sqrt(),
                    &value.elements[..4.min(value.elements.len())]
                );
            }
        }
    }
    Ok(())
}

/// Writes the logits of tokens after rows of a source, without a cache and with one.
fn logits(
    folder: &str,
    with: &Definitions,
    (rows, tokens): (&[f32], &[u32]),
    out: &str,
) -> Result<(), Box<dyn std::error::Error>> {
    let mut bytes = Vec::new();
    for n_ctx in [0, 1024] {
        let opened = lab_core::models::open(&ModelSource::File(folder.into()), with)?;
        let options = Options {
            n_threads: 2,
            flash_attn: std::env::var("PLAIN").is_err(),
            k_type: TensorType::F32,
            v_type: TensorType::F32,
            ..Options::plain(n_ctx, 512)
        };
        let mut model = Model::load(opened.plan, &opened.weights, options, &mut |_, _| {})?;
        model.set_source_rows(0, rows)?;
        for step in tokens.chunks(if n_ctx == 0 { tokens.len() } else { 3 }) {
            let mut batch = Batch::default();
            let next = model.next(0);
            for (at, token) in (next..).zip(step) {
                batch.push(*token, 0, at, true);
            }
            bytes.extend(model.forward(&batch)?.iter().flat_map(|v| v.to_le_bytes()));
        }
    }
    std::fs::write(out, bytes)?;
    Ok(())
}
