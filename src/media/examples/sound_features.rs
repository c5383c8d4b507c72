//! Prepares sounds for `scripts/sounds_vs_transformers.py`: reads a line for each, `RULES.toml SAMPLES.f32 VALUES.f32`, and answers with the
//! time that it took, the shape of each view, its frames that are not padding, and its rows. The values of all views follow each other.

use std::error::Error;
use std::io::{BufRead, Write};
use std::time::Instant;

use lab_media::sound::{Sound, SoundLimits, SoundRules, prepare};

fn main() -> Result<(), Box<dyn Error>> {
    let mut answers = std::io::stdout().lock();
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let [rules, samples, values] = line.split(' ').collect::<Vec<_>>()[..] else {
            return Err(format!("expected three files: {line}").into());
        };
        let rules: SoundRules = toml::from_str(&std::fs::read_to_string(rules)?)?;
        let bytes = std::fs::read(samples)?;
        let words = bytes.as_chunks().0.iter();
        let sound = Sound {
            rate: rules.sampling_rate,
            samples: words.map(|word| f32::from_le_bytes(*word)).collect(),
        };
        let start = Instant::now();
        let prepared = match prepare(&sound, &rules, &SoundLimits::default()) {
            Ok(prepared) => prepared,
            Err(error) => {
                writeln!(answers, "error {error}")?;
                answers.flush()?;
                continue;
            }
        };
        write!(answers, "{}", start.elapsed().as_secs_f64())?;
        let mut file = std::io::BufWriter::new(std::fs::File::create(values)?);
        for view in &prepared.views {
            write!(
                answers,
                " {:?},{},{}",
                view.shape, view.patches[0], view.grid[0]
            )?;
            for value in &view.values {
                file.write_all(&value.to_le_bytes())?;
            }
        }
        file.flush()?;
        writeln!(answers)?;
        answers.flush()?;
    }
    Ok(())
}
