//! Buckets and their profiles.

use std::time::Duration;

use http::{Method, Response};
use hyper::body::Incoming;
use striate_client::{BucketChange, ClassSetting, ClientError, ColdSetting, CreateBucket};
use striate_commands::admin::messages::{
    BucketInfo, ClassOfBucket, ColdBucket, NewBucket, NewOrigin, OriginInfo, SetBucket,
};
use striate_commands::failure::Failure;
use striate_core::{Layout, Profile, Tier};
use striate_meta::records;
use zeroize::Zeroizing;

use super::{AdminService, Body, changed, ok, read};

impl AdminService {
    pub(super) async fn buckets(
        &self,
        method: Method,
        steps: &[&str],
        body: Incoming,
    ) -> Result<Response<Body>, Failure> {
        let client = self.shared.cluster.client();
        match (method, steps) {
            (Method::GET, []) => self.list_buckets().await,
            (Method::POST, []) => self.create_bucket(read(body).await?).await,
            (Method::GET, [name]) => {
                let bucket = client.bucket(name).await.map_err(Failure::failed)?;
                Ok(ok(&self.bucket_info(bucket)))
            }
            (Method::POST, [name]) => {
                let SetBucket { packing, cold, classes } = read(body).await?;
                let change = BucketChange { packing, cold, classes: self.class_settings(classes).await? };
                client.change_bucket(name, change).await.map_err(Failure::failed)?;
                let bucket = client.bucket(name).await.map_err(Failure::failed)?;
                Ok(ok(&self.bucket_info(bucket)))
            }
            (Method::DELETE, [name]) => {
                client.delete_bucket(name).await.map_err(not_deleted)?;
                Ok(ok(&serde_json::json!({})))
            }
            _ => Err(Failure::failed("buckets can be listed, created, shown, set and deleted")),
        }
    }

    async fn create_bucket(&self, wish: NewBucket) -> Result<Response<Body>, Failure> {
        if let Some(profile) = &wish.profile {
            self.shared.cluster.support(profile).await?;
        }
        let origin = match wish.origin {
            Some(origin) => Some(self.introduce(origin).await?),
            None => None,
        };
        let request = CreateBucket {
            name: wish.name,
            origin,
            profile: wish.profile,
            block_len: wish.block_len,
            group_len: wish.group_len,
            packing: wish.packing,
            cold: wish.cold.map(cold_setting),
            classes: self.class_settings(wish.classes).await?,
            ..CreateBucket::default()
        };
        let bucket = self.shared.cluster.client().create_bucket(request).await.map_err(Failure::failed)?;
        let info = self.bucket_info(bucket);
        Ok(changed(&info.name, &info))
    }

    /// Returns the settings of storage classes. Makes the metadata survive as many losses as objects of these classes
    /// do.
    async fn class_settings(&self, wish: Vec<ClassOfBucket>) -> Result<Vec<ClassSetting>, Failure> {
        for profile in wish.iter().filter_map(|class| class.profile) {
            // Wide data is first written under the bucket's own profile.
            if profile.layout != Layout::Wide {
                self.shared.cluster.support(&profile).await?;
            }
        }
        let setting = |ClassOfBucket { class, profile, without_spare_rack }| ClassSetting {
            class,
            profile,
            without_spare_rack,
        };
        Ok(wish.into_iter().map(setting).collect())
    }

    /// Checks that an origin answers before a bucket depends on it.
    async fn introduce(&self, origin: NewOrigin) -> Result<records::Origin, Failure> {
        let NewOrigin { endpoint, bucket, region, access_key, secret, ttl_ms, block_len } = origin;
        let secret = Zeroizing::new(secret);
        let record = records::Origin {
            endpoint,
            bucket,
            region,
            access_key,
            ttl_ms,
            block_len,
            ..records::Origin::default()
        };
        self.shared.cluster.origins().introduce(record, &secret).await.map_err(Failure::failed)
    }

    async fn list_buckets(&self) -> Result<Response<Body>, Failure> {
        let buckets = self.shared.cluster.client().list_buckets("", usize::MAX).await;
        let buckets = buckets.map_err(Failure::failed)?;
        let buckets: Vec<BucketInfo> = buckets.into_iter().map(|bucket| self.bucket_info(bucket)).collect();
        Ok(ok(&buckets))
    }

    fn bucket_info(&self, bucket: records::Bucket) -> BucketInfo {
        let (cluster, default_profile) = (&self.shared.cluster, bucket.profile.is_empty());
        // An invalid profile is reported where it is used.
        let mut warnings =
            striate_control::durability_warnings(cluster.client().stripes(), &bucket, &cluster.profile())
                .unwrap_or_default();
        let volatile = bucket.profile.parse().is_ok_and(|profile: Profile| profile.tier == Tier::Memory);
        let classes = bucket.classes.iter().filter_map(class_shown).collect();
        let block_len = bucket.origin.as_ref().map_or(0, |origin| origin.block_len);
        warnings.extend(cluster.too_long_to_cache(block_len.into()));
        let origin = bucket.origin.map(|origin| OriginInfo {
            endpoint: origin.endpoint,
            bucket: origin.bucket,
            access_key: origin.access_key,
            ttl_ms: origin.ttl_ms,
            block_len: origin.block_len,
        });
        let profile = match default_profile {
            true => cluster.profile().to_string(),
            false => bucket.profile,
        };
        BucketInfo {
            name: bucket.name,
            profile,
            default_profile,
            created_unix_ms: bucket.created_unix_ms,
            owner: bucket.owner,
            block_len: bucket.block_len,
            group_len: bucket.group_len,
            packing: Some(bucket.packing).filter(|text| !text.is_empty()),
            volatile,
            origin,
            cold: bucket.cold.and_then(|cold| {
                let profile = cold.profile.parse().ok()?;
                Some(ColdBucket { profile, after_s: cold.after_s, without_spare_rack: false })
            }),
            classes,
            warnings,
        }
    }
}

fn not_deleted(error: ClientError) -> Failure {
    match &error {
        ClientError::BucketNotEmpty(name) => {
            Failure::failed(format!("{error}; `striate rm --recursive s3://{name}/` empties it"))
        }
        _ => Failure::failed(error),
    }
}

fn class_shown(record: &records::ClassProfile) -> Option<ClassOfBucket> {
    let (class, profile) = (record.class.parse().ok()?, record.profile.parse().ok()?);
    Some(ClassOfBucket { class, profile: Some(profile), without_spare_rack: false })
}

fn cold_setting(cold: ColdBucket) -> ColdSetting {
    ColdSetting {
        profile: cold.profile,
        after: Duration::from_secs(cold.after_s),
        without_spare_rack: cold.without_spare_rack,
    }
}
