//! `bench points`: the points of a model, which can be captured and edited. Reads headers, no weights.

use clap::Args as ClapArgs;

use lab_core::model::{Point, Points, tower_points};
use lab_core::models::towers::OpenedMedia;

use super::options::{LoadOptions, ModelArg};
use super::{Failure, output};

#[derive(Debug, ClapArgs)]
pub(super) struct Args {
    #[command(flatten)]
    model: ModelArg,
    /// Print JSON, as `GET /v1/lab/points` gives it
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    load: LoadOptions,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let opened = args.load.open(&args.model.source()?)?;
    let mut points = Points::of(&opened.plan)?;
    if let Some(OpenedMedia { towers, processors }) = &opened.media {
        let of_towers = towers
            .iter()
            .flat_map(|tower| tower_points(tower, processors));
        points = points.with(of_towers.collect());
    }
    if args.json {
        return output::json(&points.all);
    }
    let rows = points.all.iter().map(|point| {
        let aliases = point.aliases.join(", ");
        [point.path.clone(), shape(point), aliases, meaning(point)]
    });
    let rows: Vec<[String; 4]> = rows.collect();
    let width = |at: usize| rows.iter().map(|row| row[at].len()).max().unwrap_or(0);
    let widths = [width(0), width(1), width(2)];
    let mut text = String::new();
    for [path, shape, aliases, meaning] in &rows {
        let [a, b, c] = widths;
        let line = format!("{path:a$}  {shape:b$}  {aliases:c$}  {meaning}");
        text.push_str(line.trim_end());
        text.push('\n');
    }
    output::bytes(output::escape_controls(&text).as_bytes())
}

fn shape(point: &Point) -> String {
    let dims = point.shape.iter().map(|n| match n {
        0 => "n_kv".to_owned(),
        n => n.to_string(),
    });
    let dims: Vec<String> = dims.collect();
    format!("[{}] {}", dims.join(", "), point.ty.name())
}

fn meaning(point: &Point) -> String {
    match point.forces() {
        Some(forced) => format!("{} ({forced})", point.spec.doc),
        None => point.spec.doc.to_owned(),
    }
}
