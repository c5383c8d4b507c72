//! The `bench` program.
use lab_bench::{arch::Library, blocks::REGISTRY, ggml, model::*, plan::Plan, weights};
fn main() -> anyhow::Result<()> {
    let args: Vec<String> = std::env::args().collect();
    let w = weights::open(std::path::Path::new(&args[1]))?;
    let lib = Library::open(&REGISTRY, &[])?;
    let arch = w
        .metadata()
        .str("general.architecture")
        .unwrap_or("?")
        .to_owned();
    let def = lib.get(&arch)?;
    let plan = Plan::new(&def, w.metadata(), &w)?;
    let toks: Vec<u32> = args[2].split(',').map(|t| t.parse().unwrap()).collect();
    let chunk: usize = args[4].parse()?;
    let n_ctx: usize = args[5].parse()?;
    let fa = args[6] == "1";
    let kt = args[7].parse().unwrap();
    let mut m = Model::load(
        plan,
        &w,
        Options {
            n_ctx,
            n_batch: toks.len(),
            n_threads: 2,
            k_type: kt,
            v_type: kt,
            flash_attn: fa,
            non_causal: false,
        },
        &mut |_, _| {},
    )?;
    let mut out = vec![];
    for (c, part) in toks.chunks(chunk).enumerate() {
        let mut b = Batch::default();
        for (i, t) in part.iter().enumerate() {
            b.push(*t, 0, (c * chunk + i) as u32, true);
        }
        out.extend_from_slice(m.forward(&b)?);
    }
    std::fs::write(&args[3], bytemuck::cast_slice(&out))?;
    println!(
        "{:?} graphs {} unclaimed {:?} ggml {}",
        m.memory(),
        m.n_graphs(),
        m.plan().unclaimed,
        ggml::version()
    );
    Ok(())
}
