# A guarded SGLang server and the router, built from this checkout:
#   docker build --target server --tag sglang-lp .
#   docker run --gpus all --publish 30000:30000 sglang-lp --model-path Qwen/Qwen3-8B
ARG SGLANG=v0.5.23

FROM python:3.12-slim AS router
RUN pip install --no-cache-dir sglang-router==0.3.2
# nobody, by number: the host need not know the name.
USER 65534
EXPOSE 30000
HEALTHCHECK --interval=10s --timeout=5s --start-period=1m \
    CMD ["python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:30000/liveness')"]
ENTRYPOINT ["python", "-m", "sglang_router.launch_router", "--host", "0.0.0.0", "--port", "30000"]

FROM lmsysorg/sglang:${SGLANG} AS server
WORKDIR /opt/sglang-lp
COPY pyproject.toml hatch_build.py README.md LICENSE CHANGELOG.md ./
COPY sglang_lp ./sglang_lp
# SGLang comes with the image, at a version that the tests ran on; doctor says so, or the build ends.
RUN pip install --no-cache-dir . && sglang-lp doctor
# Models and compiled kernels are kept in folders of this user.
RUN useradd --create-home --uid 10001 sglang && install --directory --owner=sglang /models
USER 10001
ENV HF_HOME=/models
# What runs, and what is decided for requests; mount another one over it.
COPY deploy/policy.toml /etc/sglang-lp/policy.toml
ENV SGLANG_LP_POLICY=/etc/sglang-lp/policy.toml
EXPOSE 30000
# SGLang answers after a second at the earliest, and gives up after 20.
HEALTHCHECK --interval=10s --timeout=25s --start-period=10m \
    CMD ["curl", "--fail", "--silent", "http://127.0.0.1:30000/health"]
ENTRYPOINT ["sglang-lp", "serve", "--", "--host", "0.0.0.0", "--port", "30000"]
