//! Jobs of tasks over a network. A task begins when the tasks before it have ended; a job begins when a running one
//! has ended.

use super::network::{Link, LinkId, Network};

/// A flow, and the tasks of its job that must end before it begins.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Task {
    /// Links with weights.
    pub uses: Vec<(LinkId, f64)>,
    /// Bytes to transfer.
    pub bytes: f64,
    /// Factor on the time of the bytes, for the time until the first slice has passed a tree.
    pub filling: f64,
    /// Earlier tasks of the job that it waits for.
    pub after: Vec<usize>,
}

/// A repair of a chunk, an update or a read.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Job {
    /// The job's tasks; each comes after those that it waits for.
    pub tasks: Vec<Task>,
}

impl Job {
    /// Adds a task; returns its index.
    pub fn add(&mut self, uses: Vec<(LinkId, f64)>, bytes: f64, after: &[usize]) -> usize {
        self.tasks.push(Task { uses, bytes, filling: 1.0, after: after.to_vec() });
        self.tasks.len() - 1
    }
}

/// Results of a simulation.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SimulationResult {
    /// Seconds of each job, in the order of their starts.
    pub job_s: Vec<f64>,
    /// Seconds until the last job has ended.
    pub all_s: f64,
    /// Bytes carried by each link.
    pub carried: Vec<f64>,
}

/// A running job.
struct RunningJob {
    job: Job,
    began: f64,
    /// For each task, the number of tasks that it still waits for.
    waits: Vec<usize>,
    remaining: usize,
}

struct Simulation {
    network: Network,
    now: f64,
    running: Vec<Option<RunningJob>>,
    /// (job, task) of each flow.
    flows: Vec<(usize, usize)>,
    result: SimulationResult,
}

/// Runs all jobs, at most `at_once` at a time. The next job is drawn when it begins.
pub fn run(links: &[Link], mut jobs: impl Iterator<Item = Job>, at_once: usize) -> SimulationResult {
    let result = SimulationResult { carried: vec![0.0; links.len()], ..SimulationResult::default() };
    let network = Network::new(links.to_vec());
    let mut simulation = Simulation { network, now: 0.0, running: Vec::new(), flows: Vec::new(), result };
    let mut under_way = 0;
    loop {
        while under_way < at_once {
            let Some(job) = jobs.next() else { break };
            under_way += usize::from(simulation.begin(job));
        }
        let Some((seconds, ended)) = simulation.network.pass() else { break };
        simulation.now += seconds;
        under_way -= ended.into_iter().filter(|&flow| simulation.end(flow)).count();
    }
    simulation.result.all_s = simulation.now;
    simulation.result
}

impl Simulation {
    /// Begins a job. Returns true if it has tasks.
    fn begin(&mut self, job: Job) -> bool {
        let waits: Vec<usize> = job.tasks.iter().map(|task| task.after.len()).collect();
        let ready: Vec<usize> = (0..waits.len()).filter(|&task| waits[task] == 0).collect();
        let number = self.running.len();
        let remaining = job.tasks.len();
        self.running.push(Some(RunningJob { job, began: self.now, waits, remaining }));
        self.result.job_s.push(0.0);
        ready.into_iter().for_each(|task| self.begin_task(number, task));
        remaining > 0
    }

    fn begin_task(&mut self, number: usize, task: usize) {
        let Some(running) = &mut self.running[number] else { return };
        let Task { uses, bytes, filling, .. } = &mut running.job.tasks[task];
        uses.iter().for_each(|&(link, weight)| self.result.carried[link] += weight * *bytes);
        self.network.begin(self.flows.len(), std::mem::take(uses), *bytes * *filling);
        self.flows.push((number, task));
    }

    /// Ends a flow. Returns true if it was the last of its job.
    fn end(&mut self, flow: usize) -> bool {
        let (number, task) = self.flows[flow];
        let Some(running) = &mut self.running[number] else { return false };
        running.remaining -= 1;
        if running.remaining == 0 {
            self.result.job_s[number] = self.now - running.began;
            self.running[number] = None;
            return true;
        }
        let mut ready = Vec::new();
        for (later, later_task) in running.job.tasks.iter().enumerate().skip(task + 1) {
            if later_task.after.contains(&task) {
                running.waits[later] -= 1;
                if running.waits[later] == 0 {
                    ready.push(later);
                }
            }
        }
        ready.into_iter().for_each(|task| self.begin_task(number, task));
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_wait_for_those_before_them_and_jobs_for_their_turn() {
        let links = [Link { rate: 10.0, background: 0.0 }, Link { rate: 5.0, background: 0.0 }];
        let mut job = Job::default();
        let first = job.add(vec![(0, 1.0)], 10.0, &[]);
        let second = job.add(vec![(1, 1.0)], 10.0, &[]);
        job.add(vec![(0, 1.0), (1, 1.0)], 5.0, &[first, second]);
        let result = run(&links, vec![job.clone()].into_iter(), 1);
        assert_eq!(result, SimulationResult { job_s: vec![3.0], all_s: 3.0, carried: vec![15.0, 15.0] });
        assert_eq!(run(&links, vec![job.clone(), job.clone()].into_iter(), 1).job_s, [3.0, 3.0]);
        assert_eq!(run(&links, vec![job.clone(), job].into_iter(), 2).all_s, 6.0);
    }
}
