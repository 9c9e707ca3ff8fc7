//! Compiling beside the thread that answers clients.
//!
//! A large module takes a second to compile, and a hostile one may take longer than its size lets
//! expect. So one thread compiles one module at a time; who asked looks again later. What was
//! compiled waits for that under the module's bytes.

use crate::imports::State;
use crate::instance::{Compiled, compile};
use headwater_base::functions::FunctionLimits;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::thread::Builder;
use std::time::{Duration, Instant};
use wasmtime::{Engine, Linker};

/// Who waits for a module gets an error after so long.
const TIME_MAX: Duration = Duration::from_secs(10);
/// Compiled modules that wait to be asked for. Who asked may have gone.
const FINISHED_MAX: usize = 4;

type Outcome = Result<Arc<Compiled>, String>;

/// How far a module is.
pub(crate) enum Progress {
    Waiting,
    Finished(Outcome),
}

struct Job {
    module: Arc<[u8]>,
    started: Instant,
    outcome: Receiver<Result<Compiled, String>>,
    /// It took too long: nobody waits any more, but the thread is still at work.
    given_up: bool,
}

/// What is being compiled, and what was.
pub(crate) struct Compiling {
    engine: Engine,
    linker: Arc<Linker<State>>,
    job: Option<Job>,
    finished: Vec<(Arc<[u8]>, Outcome)>,
}

impl Compiling {
    pub(crate) fn new(engine: Engine, linker: Linker<State>) -> Self {
        Self { engine, linker: Arc::new(linker), job: None, finished: Vec::new() }
    }

    /// How far `module` is; compiling begins if nobody has asked for it before.
    pub(crate) fn ask(&mut self, module: &[u8], limits: &FunctionLimits) -> Progress {
        if let Some(at) = self.finished.iter().position(|(bytes, _)| **bytes == *module) {
            return Progress::Finished(self.finished.remove(at).1);
        }
        match &self.job {
            Some(job) if job.given_up => Progress::Finished(Err(String::from(
                "a module that takes too long to compile still occupies the compiler: try later",
            ))),
            Some(_) => Progress::Waiting,
            None => match self.start(module, limits) {
                Ok(()) => Progress::Waiting,
                Err(error) => Progress::Finished(Err(format!("no thread to compile: {error}"))),
            },
        }
    }

    fn start(&mut self, module: &[u8], limits: &FunctionLimits) -> std::io::Result<()> {
        let module: Arc<[u8]> = module.into();
        let (to, outcome) = channel();
        let (engine, linker) = (self.engine.clone(), self.linker.clone());
        let (bytes, limits) = (module.clone(), limits.clone());
        Builder::new().name(String::from("functions-compiler")).spawn(move || {
            // Nobody may be there to take it any more.
            let _ = to.send(compile(&engine, &linker, &bytes, &limits));
        })?;
        self.job = Some(Job { module, started: Instant::now(), outcome, given_up: false });
        Ok(())
    }

    pub(crate) fn is_busy(&self) -> bool {
        self.job.is_some()
    }

    /// Whether compiling has ended since this was last asked.
    pub(crate) fn poll(&mut self) -> bool {
        let Some(job) = &mut self.job else { return false };
        let outcome = match job.outcome.try_recv() {
            Ok(outcome) => outcome.map(Arc::new),
            // The compiler panicked.
            Err(TryRecvError::Disconnected) => Err(String::from("the compiler failed")),
            Err(TryRecvError::Empty) if !job.given_up && job.started.elapsed() > TIME_MAX => {
                job.given_up = true;
                let seconds = TIME_MAX.as_secs();
                let outcome = Err(format!("compiling it takes longer than {seconds} s"));
                self.finished.push((job.module.clone(), outcome));
                return true;
            }
            Err(TryRecvError::Empty) => return false,
        };
        let Some(job) = self.job.take() else { return false };
        if !job.given_up {
            if self.finished.len() == FINISHED_MAX {
                drop(self.finished.remove(0));
            }
            self.finished.push((job.module, outcome));
        }
        true
    }
}
