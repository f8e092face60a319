//! Pages of images, as in the EC-Store paper's second workload (§VI-B): a read fetches all images of a page at once.
//!
//! The paper's Wikipedia trace is not public. This workload keeps what the paper says of it: pages are drawn from a
//! Zipf distribution, images per page and image sizes follow power laws, the median page has about 10 images, and the
//! median image about 500 KB. The rest is chosen here: exponent 1 for the Zipf distribution (as in the paper's other
//! workload) and for both tails; at most 200 images per page; at most 20 MB per image; each image on exactly one
//! page.

use rand::Rng;
use rand::rngs::SmallRng;
use striate_splitmix::hash;

use crate::keys::Permutation;
use crate::sizes::{PowerLaw, unit};
use crate::{Operation, SizeDistribution, Sizes, Workload, Zipf};

/// Images of the median page.
pub const MEDIAN_IMAGES: u64 = 10;
/// Bytes of the median image.
pub const MEDIAN_SIZE: u64 = 500_000;
/// Maximum number of images on a page.
pub const MAX_IMAGES: u64 = 200;
/// The largest image, in bytes.
pub const MAX_SIZE: u64 = 20_000_000;
/// The exponent of both tails.
const TAIL: f64 = 1.0;

/// Pages of images. The images of a page have consecutive numbers.
#[derive(Clone, Debug)]
pub struct Pages {
    /// Number of the first image of each page, followed by the total number of images.
    firsts: Vec<u64>,
    sizes: Sizes,
    /// `None`: all pages are equally likely.
    popularity: Option<Zipf>,
    places: Permutation,
}

impl Pages {
    /// Creates `pages` pages, drawn from Zipf with this exponent. Image sizes are multiplied by `scale`; 1 gives the
    /// paper's sizes.
    ///
    /// # Panics
    /// If there are no pages, or the exponent or scale is not above 0.
    pub fn new(pages: u64, exponent: f64, scale: f64, seed: u64) -> Self {
        let counts = counts(seed).take(pages as usize);
        Self::of(counts, exponent, scale, seed)
    }

    /// Creates as many pages as `images` images fill; the last page may be shorter.
    ///
    /// # Panics
    /// As [`Pages::new`], and if `images` is 0.
    pub fn of_images(images: u64, exponent: f64, scale: f64, seed: u64) -> Self {
        let counts = counts(seed).scan(images, |left, count| {
            let count = count.min(*left);
            *left -= count;
            (count > 0).then_some(count)
        });
        Self::of(counts, exponent, scale, seed)
    }

    fn of(counts: impl Iterator<Item = u64>, exponent: f64, scale: f64, seed: u64) -> Self {
        assert!(scale > 0.0, "sizes are above 0");
        let mut firsts = vec![0];
        firsts.extend(counts.scan(0, |images, count| {
            *images += count;
            Some(*images)
        }));
        let pages = firsts.len() as u64 - 1;
        let sizes = PowerLaw::with_median(MEDIAN_SIZE as f64 * scale, MAX_SIZE as f64 * scale, TAIL);
        Self {
            firsts,
            sizes: Sizes::new(SizeDistribution::PowerLaw(sizes), seed),
            popularity: Some(Zipf::new(pages, exponent)),
            places: Permutation::new(pages, seed),
        }
    }

    /// Makes all pages equally likely, for a warm-up.
    pub fn evenly(self) -> Self {
        Self { popularity: None, ..self }
    }

    /// Returns the number of pages.
    pub fn pages(&self) -> u64 {
        self.firsts.len() as u64 - 1
    }

    /// Returns the number of a page's first image and the page's number of images.
    pub fn images(&self, page: u64) -> (u64, u64) {
        let first = self.firsts[page as usize];
        (first, self.firsts[page as usize + 1] - first)
    }

    /// Returns the page that contains an image.
    fn page_of(&self, image: u64) -> u64 {
        self.firsts.partition_point(|&first| first <= image) as u64 - 1
    }
}

impl Workload for Pages {
    fn objects(&self) -> u64 {
        self.firsts[self.firsts.len() - 1]
    }

    fn size(&self, image: u64) -> u64 {
        self.sizes.of(image)
    }

    fn next(&mut self, rng: &mut SmallRng) -> Operation {
        let rank = match &self.popularity {
            Some(zipf) => zipf.rank(rng) - 1,
            None => rng.random_range(0..self.pages()),
        };
        let (first, count) = self.images(self.places.of(rank));
        Operation::read_run(first, count)
    }

    fn key(&self, image: u64) -> String {
        let page = self.page_of(image);
        format!("page-{page:09}/image-{:03}", image - self.firsts[page as usize])
    }

    fn object(&self, key: &str) -> Option<u64> {
        let (page, image) = key.strip_prefix("page-")?.split_once("/image-")?;
        let (page, image): (u64, u64) = (page.parse().ok()?, image.parse().ok()?);
        let (first, count) = (page < self.pages()).then(|| self.images(page))?;
        (image < count && self.key(first + image) == key).then_some(first + image)
    }
}

/// Number of images on each page. Truncating the fraction makes the median 10.
fn counts(seed: u64) -> impl Iterator<Item = u64> {
    let counts = PowerLaw::with_median(MEDIAN_IMAGES as f64 + 0.5, MAX_IMAGES as f64 + 1.0, TAIL);
    (0..).map(move |page| counts.quantile(unit(hash(!seed ^ hash(page)))) as u64)
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;
    use crate::Objects;

    fn median(mut all: Vec<u64>) -> u64 {
        all.sort_unstable();
        all[all.len() / 2]
    }

    #[test]
    fn the_median_page_has_10_images_and_the_median_image_500_kb() {
        let pages = Pages::new(20_000, 1.0, 1.0, 1);
        let counts: Vec<u64> = (0..pages.pages()).map(|page| pages.images(page).1).collect();
        assert!(counts.iter().all(|count| (1..=MAX_IMAGES).contains(count)));
        // A power law with exponent 1, truncated at 201: (1/10 − 1/201) / (1/40 − 1/201).
        let with = |least: u64| counts.iter().filter(|&&count| count >= least).count() as f64;
        assert!((with(10) / with(40) - 4.75).abs() < 0.4, "{}", with(10) / with(40));
        assert_eq!(median(counts), MEDIAN_IMAGES);
        let sizes = (0..pages.objects()).map(|image| pages.size(image)).collect();
        assert!((median(sizes) as f64 / MEDIAN_SIZE as f64 - 1.0).abs() < 0.02);
    }

    /// With 1,000 pages under Zipf(1), the most popular page gets 1/H(1000) = 0.1336 of all reads, the top ten
    /// 0.3913.
    #[test]
    fn pages_are_read_whole_and_by_zipf() {
        let (mut pages, mut rng) = (Pages::new(1_000, 1.0, 1.0, 2), SmallRng::seed_from_u64(5));
        let mut reads = vec![0.0f64; 1_000];
        for _ in 0..100_000 {
            let Operation::Read(Objects::Run { first, count }) = pages.next(&mut rng) else {
                panic!("no page")
            };
            let page = pages.page_of(first);
            assert_eq!(pages.images(page), (first, count));
            reads[page as usize] += 1.0 / 100_000.0;
        }
        reads.sort_by(|a, b| b.total_cmp(a));
        assert!((reads[0] - 0.1336).abs() < 0.005, "{}", reads[0]);
        let head: f64 = reads[..10].iter().sum();
        assert!((head - 0.3913).abs() < 0.01, "{head}");
    }

    #[test]
    fn pages_can_be_made_for_a_number_of_images_and_be_read_evenly() {
        let (some, exactly) = (Pages::new(100, 1.0, 1.0, 4), Pages::of_images(1_000, 1.0, 1.0, 4));
        assert_eq!(exactly.objects(), 1_000);
        assert!((0..exactly.pages() - 1).all(|page| exactly.images(page) == some.images(page)));
        let (count, mut rng) = (exactly.pages(), SmallRng::seed_from_u64(5));
        let (mut even, mut reads) = (exactly.evenly(), vec![0.0f64; count as usize]);
        for _ in 0..100_000 {
            let Operation::Read(Objects::Run { first, .. }) = even.next(&mut rng) else { panic!("no page") };
            reads[even.page_of(first) as usize] += count as f64 / 100_000.0;
        }
        assert!(reads.iter().all(|share| (0.8..1.2).contains(share)), "{reads:?}");
    }

    #[test]
    fn keys_name_the_images_and_no_others() {
        let pages = Pages::new(50, 1.0, 0.01, 3);
        let keys: Vec<String> = (0..pages.objects()).map(|image| pages.key(image)).collect();
        assert!(keys.is_sorted());
        assert!((0..pages.objects()).all(|image| pages.object(&keys[image as usize]) == Some(image)));
        for wrong in ["page-000000050/image-000", "page-000000000/image-200", "page-0/image-0", "other"] {
            assert_eq!(pages.object(wrong), None, "{wrong}");
        }
    }
}
